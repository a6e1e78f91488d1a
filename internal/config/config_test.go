package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

const sectionAll = SectionLog | SectionRedis | SectionNATS | SectionService

func TestConfigDefaults(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_NAMESPACES": "*"})
	c, err := Read(sectionAll)
	if err != nil {
		t.Fatal(err)
	}
	if c.Redis.Mode != Standalone || c.Redis.Standalone.Addr != "127.0.0.1:6379" || c.Redis.DB != 0 {
		t.Errorf("Redis: %+v", c.Redis)
	}
	if c.NATS.URL != "nats://127.0.0.1:4222" || c.NATS.Embedded {
		t.Errorf("NATS: %+v", c.NATS)
	}
	if c.NATS.Streams.Prefix != "timers" || c.NATS.Streams.Stream != "TIMERS" {
		t.Errorf("names: %+v", c.NATS)
	}
	s := c.Service
	if got := s.Retry.String(); got != policy.DefaultRetry {
		t.Errorf("retry policies %s", got)
	}
	if !s.PayloadAttempt || s.EventData != "" || c.NATS.Streams.MaxAge != 7*24*time.Hour || c.NATS.Streams.MaxBytes != 0 || c.NATS.Streams.Replicas != 1 {
		t.Errorf("events: %+v, %+v", s, c.NATS.Streams)
	}
	if s.SweepInterval != time.Second || s.Lease != 10*time.Second || s.MaxPayload != 262144 || !s.KeyspaceEvents || s.HTTPAddr != "127.0.0.1:8080" {
		t.Errorf("service: %+v", s)
	}
	if !s.Namespaces.Match(keys.Key{App: "a", Module: "b", Type: "c", ID: "d"}) {
		t.Errorf("namespaces %v", s.Namespaces)
	}
	if len(c.Warnings) > 0 {
		t.Errorf("warnings: %v", c.Warnings)
	}
}

// Each value alone, next to a valid rest: want is "" for a good value, else text
// that the one fault holds.
func TestConfigValues(t *testing.T) {
	tests := []struct{ name, value, want string }{
		{"REDIS_URL", "redis://127.0.0.1:6380/3", ""},
		{"REDIS_URL", "rediss://user:p%40ss@redis.example:6380/3?dial_timeout=2s&skip_verify=true", ""},
		{"REDIS_URL", "unix:///run/redis.sock?db=2", ""},
		{"REDIS_URL", "redis://[::1]:6379", ""},
		{"REDIS_URL", "", "is empty"},
		{"REDIS_URL", "127.0.0.1:6379", "not a URL that can be read"},
		{"REDIS_URL", "http://127.0.0.1:6379", "invalid URL scheme"},
		{"REDIS_URL", "redis://127.0.0.1/x", "invalid database number"},
		{"REDIS_URL", "redis://127.0.0.1/-1", "want 0 or more"},
		{"REDIS_URL", "redis://127.0.0.1?colour=red", "unexpected option: colour"},
		{"REDIS_MODE", "standalone", ""},
		{"REDIS_MODE", "Cluster", ""},
		{"REDIS_MODE", "sentinel", "master_name is missing"},
		{"REDIS_MODE", "replica", "want standalone, sentinel or cluster"},
		{"NATS_URL", "nats://127.0.0.1:4333", ""},
		{"NATS_URL", "localhost", ""},
		{"NATS_URL", "tls://token@a.example, nats://user:pw@b.example:4222", ""},
		{"NATS_URL", "wss://a.example:443", ""},
		{"NATS_URL", "wss://a.example,nats://b.example", "not both"},
		{"NATS_URL", "http://a.example", `unknown scheme "http"`},
		{"NATS_URL", "nats://", "not a URL"},
		{"NATS_URL", "nats://:4222", "host is missing"},
		{"NATS_URL", "nats://a,,nats://b", "is empty"},
		{"NATS_URL", "", "is empty"},
		{"NATS_URL", "embedded", "TIMERD_DATA_DIR: is not set"},
		{"NATS_CREDS", "/no/such.creds", "no such file"},
		{"NATS_CREDS", "config_test.go", ""}, // it holds the words: BEGIN NATS USER JWT, NKEY SEED
		{"NATS_CREDS", "config.go", "holds no NATS credentials"},
		{"NATS_CA", "/no/such.pem", "no such file"},
		{"NATS_CA", "config_test.go", "holds no certificate"},
		{"NATS_CERT", "config_test.go", "TIMERD_NATS_KEY: is not set"},
		{"NATS_KEY", "config_test.go", "TIMERD_NATS_CERT: is not set"},
		{"NAMESPACES", "app1:trans:notice,shop", ""},
		{"NAMESPACES", "*:*:notice", ""},
		{"NAMESPACES", "", "is not set"},
		{"NAMESPACES", " , ", "no namespace given"},
		{"NAMESPACES", "a:b:c:d", "at most three parts"},
		{"NAMESPACES", "a:b*", "stands for a whole part"},
		{"NAMESPACES", "shop order", "write shop%20order"},
		{"NAMESPACES", "shop;pay", "write shop%3Bpay"},
		{"NAMESPACES", "shop%20order,%22pay%22:%3b", ""},
		{"RETRY", "shop%20order=10s", ""},
		{"RETRY", "shop order=10s", "write shop%20order"},
		{"LATE", "[shop]=10s", "write %5Bshop%5D"},
		{"CONSOLE_PASSWORD", "a\nb", "that nobody can type"},
		{"CONSOLE_PASSWORD", "\ufeffab", "that nobody can type"},
		{"CONSOLE_PASSWORD", "'ab'", "begins and ends with a quote"},
		{"CONSOLE_PASSWORD", " 密码 “b ", ""},
		{"CONSOLE_HOSTS", "'a.example'", "want host names"},
		{"CONSOLE_HOSTS", "a.example;b.example", "want host names"},
		{"CONSOLE_HOSTS", "a.example，b.example", "want host names"},
		{"CONSOLE_PROXIES", "10.0.0.0/8;10.1.0.0/8", "want networks"},
		{"NATS_URL", "nats://a:4222;nats://b:4222", "the host holds a separator"},
		{"NATS_URL", "nats://a:4222 nats://b:4222", "not a URL"},
		{"NATS_URL", "[nats://a:4222, nats://b:4222]", "not a URL"},
		{"NATS_URL", "nats://a，nats://b", "the host holds a separator"},
		{"REDIS_URL", "rediss://a;b:6379/0", "the host holds a separator"},
		{"REDIS_URL", "rediss://a:6379,b:6379/0", "the host holds a separator"},
		{"REDIS_URL", "rediss://a b:6379/0", "not a URL"},
		{"HTTP_ADDR", "'a':8080", "want host:port"},
		{"CONSOLE_ADDR", "“a”:8080", "want host:port"},
		{"RETRY", "app1:trans:notice=wechatpay; shop=10s,30s,2m; *=exp(10s,2,1h,12)", ""},
		{"RETRY", "", ""}, // the default policy is appended
		{"RETRY", "shop=soon", "soon"},
		{"LATE", "", ""},
		{"LATE", "shop:otp=30s drop; pay=5m; *=0", ""},
		{"LATE", "shop", "want namespace=duration"},
		{"LATE", "shop=soon", `TIMERD_LATE: "shop=soon": want a duration from 1ms to 87600h`},
		{"LATE", "shop=5m dead", "then nothing or drop"},
		{"LATE", "a:b:c:d=5m", "at most three parts"},
		{"SWEEP_INTERVAL", "250ms", ""},
		{"SWEEP_INTERVAL", "1m", ""},
		{"SWEEP_INTERVAL", "1", "want a duration from 100ms to 1m0s"},
		{"SWEEP_INTERVAL", "0s", "want a duration"},
		{"SWEEP_INTERVAL", "2h", "want a duration"},
		{"LEASE", "1s", ""},
		{"LEASE", "30s", ""},
		{"LEASE", "31s", "want a duration from 1s to 30s"},
		{"LEASE", "-10s", "want a duration"},
		{"LEASE", "", "is empty"},
		{"MAX_PAYLOAD", "1", ""},
		{"MAX_PAYLOAD", "536870912", ""},
		{"MAX_PAYLOAD", "536870913", "want a number of bytes"},
		{"MAX_PAYLOAD", "0", "want a number of bytes"},
		{"MAX_PAYLOAD", "256KiB", "want a number of bytes"},
		{"REDIS_CA", "/no/such.pem", "no such file"},
		{"REDIS_CA", "config_test.go", "holds no certificate"},
		{"REDIS_CERT", "config_test.go", "TIMERD_REDIS_KEY: is not set"},
		{"REDIS_KEY", "config_test.go", "TIMERD_REDIS_CERT: is not set"},
		{"STREAM_MAX_AGE", "24h", ""},
		{"STREAM_MAX_AGE", "2m", ""},
		{"STREAM_MAX_AGE", "0", ""},
		{"STREAM_MAX_AGE", "1m59s", "want a duration from 2m0s"},
		{"STREAM_MAX_AGE", "-1h", "want a duration"},
		{"STREAM_MAX_AGE", "7", "want a duration"},
		{"STREAM_MAX_BYTES", "20000000000", ""},
		{"STREAM_MAX_BYTES", "1000", "want a number of bytes from 1048576 on"},
		{"STREAM_MAX_BYTES", "-1", "want a number of bytes"},
		{"STREAM_MAX_BYTES", "20GB", "want a number of bytes"},
		{"STREAM_REPLICAS", "3", ""},
		{"STREAM_REPLICAS", "0", "want a number from 1 to 5"},
		{"STREAM_REPLICAS", "6", "want a number from 1 to 5"},
		{"PAYLOAD_ATTEMPT", "Off", ""},
		{"PAYLOAD_ATTEMPT", "no", "want on or off"},
		{"EVENT_DATA", "TEXT", ""},
		{"EVENT_DATA", "base64", ""},
		{"EVENT_DATA", "json", "want auto, text or base64"},
		{"KEYSPACE_EVENTS", "OFF", ""},
		{"KEYSPACE_EVENTS", "maybe", "want on or off"},
		{"SUBJECT_PREFIX", "prod.timers", ""},
		{"SUBJECT_PREFIX", "timers.", "want tokens"},
		{"SUBJECT_PREFIX", "timers.*", "want tokens"},
		{"SUBJECT_PREFIX", "tim ers", "want tokens"},
		{"SUBJECT_PREFIX", "$SYS", "want tokens"},
		{"SUBJECT_PREFIX", strings.Repeat("x", 129), "want tokens"},
		{"STREAM", "PROD_TIMERS-1", ""},
		{"STREAM", "a.b", "want a JetStream stream name"},
		{"STREAM", "a b", "want a JetStream stream name"},
		{"STREAM", "a/b", "want a JetStream stream name"},
		{"STREAM", "a\x01", "want a JetStream stream name"},
		{"STREAM", strings.Repeat("x", 201), "want a JetStream stream name"},
		{"HTTP_ADDR", ":0", ""},
		{"HTTP_ADDR", "[::1]:8080", ""},
		{"HTTP_ADDR", "off", ""},
		{"HTTP_ADDR", "8080", "want host:port"},
		{"HTTP_ADDR", "localhost:http", "want host:port"},
		{"HTTP_ADDR", "localhost:65536", "want host:port"},
		{"CONSOLE_ADDR", "127.0.0.1:8081", ""},
		{"CONSOLE_ADDR", "localhost:8081", ""},
		{"CONSOLE_ADDR", "[::1]:0", ""},
		{"CONSOLE_ADDR", "OFF", ""},
		{"CONSOLE_ADDR", "8081", "want host:port"},
		{"CONSOLE_ADDR", ":8081", "TIMERD_CONSOLE_PASSWORD: is not set"},
		{"CONSOLE_ADDR", "10.0.0.1:8081", "TIMERD_CONSOLE_PASSWORD: is not set"},
		{"CONSOLE_ACTIONS", "on", ""},
		{"CONSOLE_ACTIONS", "yes", "want on or off"},
		{"CONSOLE_HOSTS", "timerd.example.com, Timerd.Example.org:8443,[::1],10.0.0.1", ""},
		{"CONSOLE_HOSTS", "https://timerd.example.com", "want host names"},
		{"CONSOLE_HOSTS", "*.example.com", "want host names"},
		{"LOG_LEVEL", "WARN", ""},
		{"LOG_LEVEL", "verbose", "want debug, info, warn or error"},
		{"LOG_FORMAT", "json", ""},
		{"LOG_FORMAT", "xml", "want text or json"},
	}
	for _, test := range tests {
		t.Run(test.name+"="+test.value, func(t *testing.T) {
			env := map[string]string{"TIMERD_NAMESPACES": "*"}
			if strings.HasPrefix(test.name, "REDIS_") {
				env["TIMERD_REDIS_URL"] = "rediss://redis.example" // which needs none of the rest and allows all of it
			}
			env["TIMERD_"+test.name] = test.value
			testenv.SetVariables(t, env)
			_, err := Read(sectionAll)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if text := err.Error(); strings.Count(text, "\n") != 1 || !strings.Contains(text, test.want) {
				t.Errorf("want one fault with %q, got: %s", test.want, text)
			}
		})
	}
}

func TestConfigTellsEveryFaultAtOnce(t *testing.T) {
	testenv.SetVariables(t, map[string]string{
		"TIMERD_REDIS_URL": "tcp://x", "TIMERD_NATS_URL": "udp://x", "TIMERD_NAMESPACES": "a:b:c:d,,*x",
		"TIMERD_RETRY": "x", "TIMERD_SWEEP_INTERVAL": "x", "TIMERD_LEASE": "x", "TIMERD_MAX_PAYLOAD": "x", "TIMERD_KEYSPACE_EVENTS": "x",
		"TIMERD_SUBJECT_PREFIX": "*", "TIMERD_STREAM": "*", "TIMERD_HTTP_ADDR": "x",
		"TIMERD_CONSOLE_ADDR": "x", "TIMERD_CONSOLE_ACTIONS": "x", "TIMERD_CONSOLE_HOSTS": "x/", "TIMERD_CONSOLE_PROXIES": "x", "TIMERD_LOG_LEVEL": "x", "TIMERD_LOG_FORMAT": "x",
		"TIMERD_NATS_CREDS": "/x", "TIMERD_NATS_CA": "/x", "TIMERD_NATS_CERT": "/x", "TIMERD_NATS_KEY": "/x",
	})
	_, err := Read(sectionAll)
	if err == nil {
		t.Fatal("accepted")
	}
	for entry := range strings.SplitSeq(strings.Join(os.Environ(), "\n"), "\n") {
		name, _, _ := strings.Cut(entry, "=")
		if name == "TIMERD_NATS_KEY" || strings.HasPrefix(name, testenv.VariablePrefix) {
			continue // told together with the certificate
		}
		if strings.HasPrefix(name, "TIMERD_") && !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named in: %v", name, err)
		}
	}
	if n := strings.Count(err.Error(), "TIMERD_NAMESPACES"); n != 2 {
		t.Errorf("%d faults of TIMERD_NAMESPACES, want 2: %v", n, err)
	}
}

func TestConfigChecksTheURLOfABadMode(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_MODE": "replica", "TIMERD_REDIS_URL": "redis://127.0.0.1/x"})
	_, err := Read(SectionRedis)
	if err == nil || !strings.Contains(err.Error(), "TIMERD_REDIS_MODE") || !strings.Contains(err.Error(), "TIMERD_REDIS_URL") {
		t.Errorf("want both faults, got: %v", err)
	}
}

// A cluster of Valkey 9 may have further databases, which timerd does not serve.
func TestConfigRefusesADatabaseOfACluster(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_MODE": "cluster", "TIMERD_REDIS_URL": "redis://127.0.0.1/3"})
	if _, err := Read(SectionRedis); err == nil || !strings.Contains(err.Error(), "database 3: timerd serves database 0 of a cluster") {
		t.Errorf("got: %v", err)
	}
}

func TestConfigReadsOnlyWhatIsNeeded(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_LEASE": "never", "TIMERD_NATS_URL": "udp://x"})
	if _, err := Read(SectionRedis); err != nil {
		t.Error(err)
	}
}

// What a file, a shell or a secret made by echo leaves around a value is not part of it.
func TestConfigTrimsValues(t *testing.T) {
	plain := map[string]string{
		"REDIS_URL": "rediss://u:p@redis.example:6380/1", "REDIS_MODE": "standalone", "REDIS_CA": "", "NATS_URL": "nats://a.example:4222, nats://b.example:4222",
		"NATS_CREDS": "config_test.go", "NAMESPACES": "shop,pay", "RETRY": "shop=10s; *=alipay", "LATE": "shop=5m drop", "SWEEP_INTERVAL": "2s", "LEASE": "5s",
		"MAX_PAYLOAD": "1000", "KEYSPACE_EVENTS": "off", "PAYLOAD_ATTEMPT": "off", "EVENT_DATA": "text", "SUBJECT_PREFIX": "prod.timers", "STREAM": "PROD",
		"STREAM_MAX_AGE": "24h", "STREAM_MAX_BYTES": "2000000", "STREAM_REPLICAS": "3", "HTTP_ADDR": ":8080", "DATA_DIR": "data", "LOG_LEVEL": "warn", "LOG_FORMAT": "json",
		"CONSOLE_ADDR": ":8081", "CONSOLE_PASSWORD": "p w", "CONSOLE_ACTIONS": "on", "CONSOLE_HOSTS": "timerd.example", "CONSOLE_PROXIES": "10.0.0.0/8",
	}
	read := func(before, after string) Config {
		env := map[string]string{}
		for name, value := range plain {
			env[prefix+"_"+name] = before + value + after
			if name == "CONSOLE_PASSWORD" {
				env[prefix+"_"+name] = value + strings.Trim(after, " \t\u00a0")
			}
		}
		testenv.SetVariables(t, env)
		c, err := Read(sectionAll)
		if err != nil {
			t.Errorf("%q and %q around values: %v", before, after, err)
		}
		return c
	}
	for name := range slices.Values(knownVariables()) {
		if _, ok := plain[name]; !ok && !slices.Contains([]string{"REDIS_CERT", "REDIS_KEY", "NATS_CA", "NATS_CERT", "NATS_KEY"}, name) {
			t.Errorf("%s is not tried", name)
		}
	}
	said := func(c Config) string {
		return fmt.Sprint(c.Shared(), c.Redis.Shown, c.Redis.Standalone.Password, c.Redis.FirstAddr, c.NATS.URL, c.NATS.Creds, c.NATS.DataDir, c.Service.HTTPAddr, c.Log, c.Console.Addr,
			c.Console.Hosts, c.Console.Proxies, c.Console.Password.Matches("p w"))
	}
	want := said(read("", ""))
	for _, around := range [][2]string{{"", "\n"}, {"", "\r\n"}, {" ", " \n\n"}, {"\t", "\t"}, {"\u00a0", "\u00a0"}, {"\ufeff", "\n"}} {
		if got := said(read(around[0], around[1])); got != want {
			t.Errorf("%q around values:\n%s\nwant\n%s", around, got, want)
		}
	}
}

// Quotes in a file of variables are part of the value for docker. Each variable says so, once, and takes none of them.
func TestConfigTellsOfQuotes(t *testing.T) {
	for _, quote := range []string{`""`, "''", "``", "“”", "‘’", "„“"} {
		open, size := utf8.DecodeRuneInString(quote)
		env := map[string]string{}
		for _, name := range knownVariables() {
			env[prefix+"_"+name] = string(open) + "x" + quote[size:]
		}
		env["TIMERD_NATS_URL"] = string(open) + "nats://u:s3cr3t@a" + quote[size:]
		env["TIMERD_NAMESPACES"] = string(open) + "shop,pay" + quote[size:]
		testenv.SetVariables(t, env)
		_, err := Read(sectionAll)
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": "embedded", "TIMERD_DATA_DIR": env["TIMERD_DATA_DIR"]})
		_, dataErr := Read(SectionNATS)
		text := fmt.Sprintf("%v\n%v", err, dataErr)
		for _, name := range knownVariables() {
			if name == "REDIS_KEY" || name == "NATS_KEY" {
				continue // told together with the certificate
			}
			told := regexp.MustCompile(`(?m)^  TIMERD_`+name+`\b.* \(it is in quotes`).FindAllString(text, -1)
			if len(told) != 1 {
				t.Errorf("%s: %s says %d times that it is in quotes: %s", quote, name, len(told), text)
			}
		}
		if strings.Contains(text, "s3cr3t") || !strings.Contains(text, "write ") {
			t.Errorf("%s: %s", quote, text)
		}
	}
}

// Whatever is wrong with a URL, a password in it never shows.
func TestConfigHidesSecrets(t *testing.T) {
	const secret = "s3cr3t"
	redisURLs := []string{
		"redis://:s3cr3t@127.0.0.1:6379/0", "redis://user:s3cr3t@127.0.0.1:6379/0", "redis://s3cr3t@127.0.0.1:6379/0", "redis://s3cr3t:part2@127.0.0.1:6379/0",
		"http://user:s3cr3t@127.0.0.1", "redis://user:s3cr3t@127.0.0.1/zero", "redis://user:s3cr3t@127.0.0.1/0?x=1",
		"redis://user:s3cr3t@127.0.0.1:port/0", "redis//user:s3cr3t@127.0.0.1", "user:s3cr3t@127.0.0.1:6379",
		"redis:user:s3cr3t@127.0.0.1", "redis://user:12/s3cr3t@127.0.0.1", "redis://user:a/s3cr3t@127.0.0.1",
		"redis://user:12#s3cr3t@127.0.0.1", "redis://user:12?s3cr3t@127.0.0.1", "redis://us er:s3cr3t@127.0.0.1",
		"redis://user:%zzs3cr3t@127.0.0.1", "redis://user:s3cr3t@", "redis://:s3cr3t", "://:s3cr3t@x", "redis://127.0.0.1/x?password=s3cr3t",
		"redis://127.0.0.1/0?master_name=m&password=s3cr3t&db=x", "redis://127.0.0.1/0?master_name=m&username=u&password=s3cr3t",
		"redis://user:s3cr3t\n@127.0.0.1", "redis://127.0.0.1/?password=a%40s3cr3t", "redis://:@s3cr3t@127.0.0.1/db",
		"redis://u:s3cr3t@127.0.0.1/0?addr=:s3cr3t@x", "redis://127.0.0.1/0?sentinel_password=s3cr3t", "redis://127.0.0.1/0?foo=s3cr3t",
		"redis://127.0.0.1/0?foo=x&foo=s3cr3t", "redis://127.0.0.1/0?master_name=m&sentinel_password=s3cr3t", "redis://127.0.0.1/0?disableIdentity=s3cr3t",
		"redis://127.0.0.1/0?unstable_resp3=s3cr3t", "redis://127.0.0.1/0?Password=s3cr3t&db=1", "redis://127.0.0.1/0?pipeline_pool_size=s3cr3t",
	}
	natsURLs := []string{
		"nats://s3cr3t@127.0.0.1", "nats://user:s3cr3t@127.0.0.1", "s3cr3t@127.0.0.1", "user:s3cr3t@127.0.0.1:4222",
		"http://s3cr3t@127.0.0.1", "nats://s3cr3t@127.0.0.1:port", "nats://user:s3/s3cr3t@127.0.0.1,nats://x",
		"nats://a?token=s3cr3t", "http://a?token=s3cr3t", "nats://a,nats://user:s3cr3t@", "wss://u:s3cr3t@a,nats://u:s3cr3t@b", "embedded://u:s3cr3t@127.0.0.1:4222",
		"embedded://s3cr3t@0.0.0.0:4222", "embedded://:s3cr3t@0.0.0.0:4222", "embedded://u:s3cr3t@0.0.0.0", "embedded://u:s3/cr3t@0.0.0.0:1", "embedded://u:s3cr3t@h:1/x",
	}
	try := func(env map[string]string) {
		env["TIMERD_NAMESPACES"] = "*"
		env["TIMERD_PASWORD"] = secret // unknown: a warning without its value
		testenv.SetVariables(t, env)
		c, err := Read(sectionAll)
		said := []string{c.Redis.Shown, c.NATS.Shown}
		said = append(said, c.Warnings...)
		if err != nil {
			said = append(said, err.Error())
		}
		for _, text := range said {
			if strings.Contains(text, secret) {
				t.Errorf("%v: tells the secret: %s", env, text)
			}
		}
	}
	for _, u := range redisURLs {
		for _, mode := range []Mode{Standalone, Sentinel, Cluster} {
			try(map[string]string{"TIMERD_REDIS_URL": u, "TIMERD_REDIS_MODE": string(mode)})
		}
	}
	for _, u := range natsURLs {
		try(map[string]string{"TIMERD_NATS_URL": u})
	}
}

func TestConfigEmbedded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for value, listen := range map[string]string{"embedded": "", "embedded://127.0.0.1:4333": "127.0.0.1:4333"} {
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": value, "TIMERD_DATA_DIR": dir, "TIMERD_NATS_CREDS": "/x"})
		c, err := Read(SectionNATS)
		if err != nil {
			t.Fatal(err)
		}
		if !c.NATS.Embedded || c.NATS.Listen != listen || c.NATS.DataDir != dir {
			t.Errorf("%s: %+v", value, c.NATS)
		}
		if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "no effect") {
			t.Errorf("warnings: %v", c.Warnings)
		}
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": "embedded://4222", "TIMERD_DATA_DIR": dir})
	if _, err := Read(SectionNATS); err == nil {
		t.Error("embedded://4222 was accepted")
	}
}

// Whoever reaches the server may do everything, so other machines need a password.
func TestConfigEmbeddedCredentials(t *testing.T) {
	read := func(url string) (NATS, error) {
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": url, "TIMERD_DATA_DIR": "data"})
		c, err := Read(SectionNATS)
		return c.NATS, err
	}
	for _, url := range []string{
		"embedded", "embedded://127.0.0.1:4222", "embedded://127.8.8.8:0", "embedded://[::1]:4222", "embedded://localhost:4222",
		"embedded://u:p@127.0.0.1:4222", "embedded://u:p@0.0.0.0:4222", "embedded://u:p@:4222", "embedded://u:p@[::]:4222", "embedded://u:p@timerd.example:4222",
	} {
		c, err := read(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if has := strings.Contains(url, "@"); has != (c.User == "u" && c.Password == "p") || strings.Contains(c.Listen, "@") {
			t.Errorf("%s: %+v", url, c)
		}
		if out := c.FromOutside(); strings.Contains(out.URL, "//:") || out.User != c.User || out.Password != c.Password {
			t.Errorf("%s: from outside %+v", url, out)
		}
	}
	for _, url := range []string{
		"embedded://0.0.0.0:4222", "embedded://:4222", "embedded://[::]:4222", "embedded://10.0.0.1:4222", "embedded://timerd.example:4222",
		"embedded://127.0.0.1.example:4222", "embedded://[::ffff:10.0.0.1]:4222",
	} {
		if _, err := read(url); err == nil || !strings.Contains(err.Error(), "without a password: want embedded://user:password@"+strings.TrimPrefix(url, "embedded://")) {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"embedded://u@0.0.0.0:4222", "embedded://u@127.0.0.1:4222", "embedded://u:@127.0.0.1:4222", "embedded://:p@127.0.0.1:4222", "embedded://@0.0.0.0:4222"} {
		if _, err := read(url); err == nil || !strings.Contains(err.Error(), "the user or the password is missing") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if c, err := read("embedded://u:p%40%3A%2F@127.0.0.1:4222"); err != nil || c.Password != "p@:/" {
		t.Errorf("an encoded password: %q, %v", c.Password, err)
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	got := unknownVariables([]string{
		"PATH=/bin", "TIMERDX=1", "TIMERD_NAMESPACES=*", "TIMERD_TEST_ANYTHING=1",
		"TIMERD_SERVICE_HOST=10.0.0.1", "TIMERD_SERVICE_PORT=8080", "TIMERD_SERVICE_PORT_HTTP=8080", "TIMERD_PORT=tcp://10.0.0.1:8080",
		"TIMERD_PORT_8080_TCP=tcp://10.0.0.1:8080", "TIMERD_PORT_8080_TCP_ADDR=10.0.0.1", "TIMERD_REDIS_SERVICE_HOST=10.0.0.2",
		"TIMERD_REDIS=x", "TIMERD_PASSWORD=x", "TIMERD_NATS_CREDENTIALS=x", "TIMERD_NAMESPACE=*", "TIMERD_REDISURL=redis://:pw@x", "TIMERD_HTTP_PORT=80", "TIMERD_XYZZY=",
	})
	want := []string{
		"TIMERD_HTTP_PORT is unknown and has no effect; did you mean TIMERD_HTTP_ADDR?",
		"TIMERD_NAMESPACE is unknown and has no effect; did you mean TIMERD_NAMESPACES?",
		"TIMERD_NATS_CREDENTIALS is unknown and has no effect; did you mean TIMERD_NATS_CREDS?",
		"TIMERD_PASSWORD is unknown and has no effect; did you mean TIMERD_CONSOLE_PASSWORD?",
		"TIMERD_REDIS is unknown and has no effect; did you mean TIMERD_REDIS_URL?",
		"TIMERD_REDISURL is unknown and has no effect; did you mean TIMERD_REDIS_URL?",
		"TIMERD_XYZZY is unknown and has no effect",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
