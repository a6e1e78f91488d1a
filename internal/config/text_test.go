package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/testenv"
)

// What a file, a shell or a secret made by echo leaves around a value is not part of it.
func TestConfigTrimsValues(t *testing.T) {
	plain := map[string]string{
		"REDIS_URL": "rediss://u:p@redis.example:6380/1", "REDIS_MODE": "standalone", "REDIS_CA": "",
		"NATS_URL":   "nats://a.example:4222, nats://b.example:4222",
		"NATS_CREDS": "config_test.go", "NAMESPACES": "shop,pay", "RETRY": "shop=10s; *=alipay", "LATE": "shop=5m drop",
		"GUARD":          "shop=unless paid:%id",
		"SWEEP_INTERVAL": "2s", "LEASE": "5s",
		"MAX_PAYLOAD": "1000", "KEYSPACE_EVENTS": "off", "PAYLOAD_ATTEMPT": "off", "EVENT_DATA": "text",
		"SUBJECT_PREFIX": "prod.timers", "STREAM": "PROD",
		"STREAM_MAX_AGE": "24h", "STREAM_MAX_BYTES": "2000000", "STREAM_REPLICAS": "3", "HTTP_ADDR": ":8080",
		"DATA_DIR": "data", "LOG_LEVEL": "warn", "LOG_FORMAT": "json",
		"CONSOLE_ADDR": ":8081", "CONSOLE_PASSWORD": "p w", "CONSOLE_ACTIONS": "on", "CONSOLE_HOSTS": "timerd.example",
		"CONSOLE_PROXIES": "10.0.0.0/8",
	}
	notTried := []string{
		"REDIS_CERT", "REDIS_KEY", "NATS_CA", "NATS_CERT", "NATS_KEY",
		"NATS_CONTEXT", // instead of others: see TestNATSContext
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
		if _, ok := plain[name]; !ok && !slices.Contains(notTried, name) {
			t.Errorf("%s is not tried", name)
		}
	}
	said := func(c Config) string {
		return fmt.Sprint(c.Shared(), c.Redis.Shown, c.Redis.Standalone.Password, c.Redis.FirstAddr, c.NATS.URL,
			c.NATS.Creds, c.NATS.DataDir, c.Service.HTTPAddr, c.Log, c.Console.Addr,
			c.Console.Hosts, c.Console.Proxies, c.Console.Password.Matches("p w"))
	}
	want := said(read("", ""))
	for _, around := range [][2]string{{"", "\n"}, {"", "\r\n"}, {" ", " \n\n"}, {"\t", "\t"}, {"\u00a0", "\u00a0"},
		{"\ufeff", "\n"}} {
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
		delete(env, "TIMERD_NATS_CONTEXT") // instead of the others
		env["TIMERD_NAMESPACES"] = string(open) + "shop,pay" + quote[size:]
		testenv.SetVariables(t, env)
		_, err := Read(sectionAll)
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": "embedded",
			"TIMERD_DATA_DIR": env["TIMERD_DATA_DIR"]})
		_, dataErr := Read(SectionNATS)
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_CONTEXT": string(open) + "x" + quote[size:]})
		_, contextErr := Read(SectionNATS)
		text := fmt.Sprintf("%v\n%v\n%v", err, dataErr, contextErr)
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
		"redis://:s3cr3t@127.0.0.1:6379/0", "redis://user:s3cr3t@127.0.0.1:6379/0", "redis://s3cr3t@127.0.0.1:6379/0",
		"redis://s3cr3t:part2@127.0.0.1:6379/0",
		"http://user:s3cr3t@127.0.0.1", "redis://user:s3cr3t@127.0.0.1/zero", "redis://user:s3cr3t@127.0.0.1/0?x=1",
		"redis://user:s3cr3t@127.0.0.1:port/0", "redis//user:s3cr3t@127.0.0.1", "user:s3cr3t@127.0.0.1:6379",
		"redis:user:s3cr3t@127.0.0.1", "redis://user:12/s3cr3t@127.0.0.1", "redis://user:a/s3cr3t@127.0.0.1",
		"redis://user:12#s3cr3t@127.0.0.1", "redis://user:12?s3cr3t@127.0.0.1", "redis://us er:s3cr3t@127.0.0.1",
		"redis://user:%zzs3cr3t@127.0.0.1", "redis://user:s3cr3t@", "redis://:s3cr3t", "://:s3cr3t@x",
		"redis://127.0.0.1/x?password=s3cr3t",
		"redis://127.0.0.1/0?master_name=m&password=s3cr3t&db=x",
		"redis://127.0.0.1/0?master_name=m&username=u&password=s3cr3t",
		"redis://user:s3cr3t\n@127.0.0.1", "redis://127.0.0.1/?password=a%40s3cr3t", "redis://:@s3cr3t@127.0.0.1/db",
		"redis://u:s3cr3t@127.0.0.1/0?addr=:s3cr3t@x", "redis://127.0.0.1/0?sentinel_password=s3cr3t",
		"redis://127.0.0.1/0?foo=s3cr3t",
		"redis://127.0.0.1/0?foo=x&foo=s3cr3t", "redis://127.0.0.1/0?master_name=m&sentinel_password=s3cr3t",
		"redis://127.0.0.1/0?disableIdentity=s3cr3t",
		"redis://127.0.0.1/0?unstable_resp3=s3cr3t", "redis://127.0.0.1/0?Password=s3cr3t&db=1",
		"redis://127.0.0.1/0?pipeline_pool_size=s3cr3t",
	}
	natsURLs := []string{
		"nats://s3cr3t@127.0.0.1", "nats://user:s3cr3t@127.0.0.1", "s3cr3t@127.0.0.1", "user:s3cr3t@127.0.0.1:4222",
		"http://s3cr3t@127.0.0.1", "nats://s3cr3t@127.0.0.1:port", "nats://user:s3/s3cr3t@127.0.0.1,nats://x",
		"nats://a?token=s3cr3t", "http://a?token=s3cr3t", "nats://a,nats://user:s3cr3t@",
		"wss://u:s3cr3t@a,nats://u:s3cr3t@b", "embedded://u:s3cr3t@127.0.0.1:4222",
		"embedded://s3cr3t@0.0.0.0:4222", "embedded://:s3cr3t@0.0.0.0:4222", "embedded://u:s3cr3t@0.0.0.0",
		"embedded://u:s3/cr3t@0.0.0.0:1", "embedded://u:s3cr3t@h:1/x",
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
