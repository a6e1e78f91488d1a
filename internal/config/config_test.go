package config

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

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
	if !s.PayloadAttempt || s.EventData != "" || c.NATS.Streams.MaxAge != 7*24*time.Hour ||
		c.NATS.Streams.MaxBytes != 0 || c.NATS.Streams.Replicas != 1 {
		t.Errorf("events: %+v, %+v", s, c.NATS.Streams)
	}
	if s.SweepInterval != time.Second || s.Lease != 10*time.Second || s.MaxPayload != 262144 || !s.KeyspaceEvents ||
		s.HTTPAddr != "127.0.0.1:8080" {
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
		{"GUARD", "", ""},
		{"GUARD", "shop:order:timeout=unless shop:order:paid:%id; pay=if pay:live:%module:%id; *=if a unless b", ""},
		{"GUARD", "shop=unless paid:%order", `TIMERD_GUARD: "shop=unless paid:%order": unknown placeholder "%order"`},
		{"GUARD", "a:b:c:d=if x", "at most three parts"},
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
		"TIMERD_RETRY": "x", "TIMERD_SWEEP_INTERVAL": "x", "TIMERD_LEASE": "x", "TIMERD_MAX_PAYLOAD": "x",
		"TIMERD_KEYSPACE_EVENTS": "x",
		"TIMERD_SUBJECT_PREFIX":  "*", "TIMERD_STREAM": "*", "TIMERD_HTTP_ADDR": "x",
		"TIMERD_CONSOLE_ADDR": "x", "TIMERD_CONSOLE_ACTIONS": "x", "TIMERD_CONSOLE_HOSTS": "x/",
		"TIMERD_CONSOLE_PROXIES": "x", "TIMERD_LOG_LEVEL": "x", "TIMERD_LOG_FORMAT": "x",
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
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_MODE": "replica",
		"TIMERD_REDIS_URL": "redis://127.0.0.1/x"})
	_, err := Read(SectionRedis)
	if err == nil || !strings.Contains(err.Error(), "TIMERD_REDIS_MODE") ||
		!strings.Contains(err.Error(), "TIMERD_REDIS_URL") {
		t.Errorf("want both faults, got: %v", err)
	}
}

// A cluster of Valkey 9 may have further databases, which timerd does not serve.
func TestConfigRefusesADatabaseOfACluster(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_MODE": "cluster",
		"TIMERD_REDIS_URL": "redis://127.0.0.1/3"})
	if _, err := Read(SectionRedis); err == nil || !strings.Contains(err.Error(),
		"database 3: timerd serves database 0 of a cluster") {
		t.Errorf("got: %v", err)
	}
}

func TestConfigReadsOnlyWhatIsNeeded(t *testing.T) {
	testenv.SetVariables(t, map[string]string{"TIMERD_LEASE": "never", "TIMERD_NATS_URL": "udp://x"})
	if _, err := Read(SectionRedis); err != nil {
		t.Error(err)
	}
}

func TestChildEnvironment(t *testing.T) {
	t.Parallel()
	environ := []string{"PATH=/bin", "TIMERD_NATS_URL=nats://u:secret@n", "TIMERD_PASWORD=secret", "TIMERDS=2",
		"A=TIMERD_"}
	got, want := withoutSettings(environ), []string{"PATH=/bin", "TIMERDS=2", "A=TIMERD_"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	got := unknownVariables([]string{
		"PATH=/bin", "TIMERDX=1", "TIMERD_NAMESPACES=*", "TIMERD_TEST_ANYTHING=1",
		"TIMERD_SERVICE_HOST=10.0.0.1", "TIMERD_SERVICE_PORT=8080", "TIMERD_SERVICE_PORT_HTTP=8080",
		"TIMERD_PORT=tcp://10.0.0.1:8080",
		"TIMERD_PORT_8080_TCP=tcp://10.0.0.1:8080", "TIMERD_PORT_8080_TCP_ADDR=10.0.0.1",
		"TIMERD_REDIS_SERVICE_HOST=10.0.0.2",
		"TIMERD_REDIS=x", "TIMERD_PASSWORD=x", "TIMERD_NATS_CREDENTIALS=x", "TIMERD_NAMESPACE=*",
		"TIMERD_REDISURL=redis://:pw@x", "TIMERD_HTTP_PORT=80", "TIMERD_XYZZY=",
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
