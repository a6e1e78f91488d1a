package config

import (
	"net/url"
	"strings"

	"github.com/timerd-io/timerd/internal/diag"
)

// Clients returns the options with which an operator's commands reach the servers. With Sentinel they name one of the
// sentinels; with a cluster of several nodes they name no server, because none is known. They name no users, because
// timerd's own user may seldom run these commands.
func (c Config) Clients() diag.Clients {
	clients := diag.Clients{DB: c.Redis.DB, TLS: c.Redis.TLS != nil}
	switch c.Redis.Mode {
	case Standalone:
		clients.Redis = c.Redis.FirstAddr
	case Sentinel:
		clients.Sentinel, clients.Master = c.Redis.FirstAddr, c.Redis.Sentinel.MasterName
	}
	clients.Context = c.NATS.Context
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
