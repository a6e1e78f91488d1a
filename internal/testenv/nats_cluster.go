package testenv

import (
	"net/url"
	"strconv"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/devserver"
)

// NATSCluster starts a cluster of three NATS servers, and stops it when t ends. It takes some seconds until JetStream
// has a leader.
func NATSCluster(t testing.TB) []*NATSServer {
	t.Helper()
	var routes []*url.URL
	for range 3 {
		port, err := devserver.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		routes = append(routes, &url.URL{Scheme: "nats", Host: devserver.Address(port)})
	}
	var servers []*NATSServer
	for i, route := range routes {
		port, err := strconv.Atoi(route.Port())
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, NATS(t, func(o *server.Options) {
			o.ServerName = "testenv-" + strconv.Itoa(i)
			o.Cluster = server.ClusterOpts{Name: "three", Host: "127.0.0.1", Port: port}
			o.Routes = routes
		}))
	}
	return servers
}
