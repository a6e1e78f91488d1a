package config

import (
	"net/url"
	"strings"

	"github.com/timerd-io/timerd/internal/diag"
)

// Clients returns how an operator's commands reach the servers. The server is not known where sentinels name it, or where a cluster has
// several.
func (c Config) Clients() diag.Clients {
	clients := diag.Clients{DB: c.Redis.DB, TLS: c.Redis.TLS != nil}
	if c.Redis.Mode == Standalone {
		clients.Redis = c.Redis.FirstAddr
	}
	var all []string
	for entry := range strings.SplitSeq(c.NATS.FromOutside().URL, ",") {
		if u, err := url.Parse(entry); err == nil && u.Host != "" {
			u.User, u.RawQuery = nil, ""
			all = append(all, u.String())
		}
	}
	switch clients.NATS = strings.Join(all, ","); clients.NATS {
	case "nats://127.0.0.1:4222", "nats://localhost:4222", "nats://127.0.0.1", "nats://localhost":
		clients.NATS = ""
	}
	return clients
}
