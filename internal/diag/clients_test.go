package diag_test

import (
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
)

// A fix that is pasted reaches timerd's servers, and not those of somebody else at the default addresses.
func TestClients(t *testing.T) {
	t.Parallel()
	const fix = "promote it: redis-cli REPLICAOF NO ONE; or, if it hangs: redis-cli --cluster fix h:1"
	const edit = "nats stream edit TIMERS --force; or: nats consumer rm TIMERS a --force"
	const master = "-h $(redis-cli -h s1 -p 26379 SENTINEL GET-MASTER-ADDR-BY-NAME timers | sed '2s/^/-p /') "
	for _, c := range []struct {
		clients        diag.Clients
		server         string
		fix, want      string
		addressedTwice bool
	}{
		{diag.Clients{}, "", fix, fix, false},
		{diag.Clients{Redis: "127.0.0.1:6379"}, "", fix, fix, false},
		{diag.Clients{Redis: "redis.example:6379"}, "", fix,
			"promote it: redis-cli -h redis.example -p 6379 REPLICAOF NO ONE; or, if it hangs: redis-cli --cluster " +
				"fix h:1", true},
		{diag.Clients{Redis: "localhost:6380", DB: 3, TLS: true}, "", "redis-cli DEL k",
			"redis-cli -h localhost -p 6380 --tls -n 3 DEL k", true},
		{diag.Clients{Redis: "localhost:6379", DB: 3}, "", "redis-cli DEL k", "redis-cli -n 3 DEL k", true},
		{diag.Clients{Redis: "/run/redis.sock"}, "", "redis-cli BGSAVE", "redis-cli -s /run/redis.sock BGSAVE", true},
		{
			diag.Clients{Sentinel: "s1:26379", Master: "timers", DB: 2}, "",
			"raise it: redis-cli CONFIG SET maxmemory 5; or: redis-cli BGSAVE",
			"raise it: redis-cli " + master + "-n 2 CONFIG SET maxmemory 5; or: redis-cli " + master + "-n 2 BGSAVE",
			true,
		},
		{
			diag.Clients{Sentinel: "s1:26379", Master: "it's", TLS: true}, "", "redis-cli BGSAVE",
			`redis-cli -h $(redis-cli -h s1 -p 26379 --tls SENTINEL GET-MASTER-ADDR-BY-NAME 'it'\''s' | sed '2s/^/-p /') --tls BGSAVE`, true,
		},
		{diag.Clients{}, "10.0.0.7:7001", "redis-cli BGSAVE", "redis-cli -h 10.0.0.7 -p 7001 BGSAVE", true},
		{diag.Clients{}, "", edit, edit, false},
		{diag.Clients{NATS: "nats://a:1,nats://b:1"}, "", edit,
			"nats -s nats://a:1,nats://b:1 stream edit TIMERS --force; or: nats -s nats://a:1,nats://b:1 consumer rm " +
				"TIMERS a --force", true},
	} {
		all := diag.Findings{{Text: "redis-cli SET", Fix: c.fix}}
		c.clients.On(c.server).Address(all)
		if c.addressedTwice {
			diag.Clients{Redis: "other:1", NATS: "nats://other:1"}.Address(all)
		}
		if all[0].Fix != c.want || all[0].Text != "redis-cli SET" {
			t.Errorf("%+v: %+v\nwant %s", c.clients, all[0], c.want)
		}
	}
}
