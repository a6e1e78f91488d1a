package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
)

// Commands in fixes reach the servers that timerd uses, in each mode. They name no user: an operator has another one,
// as a rule.
func TestClients(t *testing.T) {
	tests := []struct {
		mode, redis, nats string
		want              diag.Clients
	}{
		{"", "redis://127.0.0.1:6379/0", "nats://127.0.0.1:4222", diag.Clients{Redis: "127.0.0.1:6379"}},
		{"", "redis://timerd:s3cr3t@redis.example/3", "nats://timerd:s3cr3t@nats.example",
			diag.Clients{Redis: "redis.example:6379", DB: 3, NATS: "nats://nats.example"}},
		{"", "rediss://:s3cr3t@redis.example:6380", "tls://s3cr3t@a:4222,nats://b",
			diag.Clients{Redis: "redis.example:6380", TLS: true, NATS: "tls://a:4222,nats://b"}},
		{"", "unix://timerd:s3cr3t@/run/redis.sock?db=2", "embedded", diag.Clients{Redis: "/run/redis.sock", DB: 2}},
		{"", "redis://[::1]:7000", "embedded://timerd:s3cr3t@:4333",
			diag.Clients{Redis: "[::1]:7000", NATS: "nats://127.0.0.1:4333"}},
		{
			"sentinel",
			"rediss://sentry:s3cr3t@s1:26379/2?master_name=timers&addr=s2:26379&username=timerd&password=s3cr3t",
			"nats://localhost",
			diag.Clients{Sentinel: "s1:26379", Master: "timers", DB: 2, TLS: true},
		},
		{"cluster", "rediss://timerd:s3cr3t@c1:7001?addr=c2:7002", "wss://timerd:s3cr3t@nats.example:443?x=s3cr3t",
			diag.Clients{TLS: true, NATS: "wss://nats.example:443"}},
	}
	for _, test := range tests {
		env := map[string]string{"TIMERD_REDIS_URL": test.redis, "TIMERD_NATS_URL": test.nats,
			"TIMERD_DATA_DIR": t.TempDir()}
		if test.mode != "" {
			env["TIMERD_REDIS_MODE"] = test.mode
		}
		testenv.SetVariables(t, env)
		c, err := Read(SectionRedis | SectionNATS)
		if err != nil {
			t.Errorf("%s, %s: %v", test.redis, test.nats, err)
			continue
		}
		got := c.Clients()
		if got != test.want {
			t.Errorf("%s %s, %s: %+v\nwant %+v", test.mode, test.redis, test.nats, got, test.want)
		}
		fixes := diag.Findings{{Fix: "redis-cli CONFIG SET a b; nats stream edit TIMERS"}}
		got.Address(fixes)
		if text := fmt.Sprintf("%+v %+v", got, fixes); strings.Contains(text, "s3cr3t") {
			t.Errorf("%s, %s: the secret is in %s", test.redis, test.nats, text)
		}
	}
}
