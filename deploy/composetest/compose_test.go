// Package composetest checks docker-compose.yml by the library that `docker compose` itself reads it
// with. It is a module of its own so that timerd does not depend on that library.
package composetest

import (
	"flag"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/nats-io/nats-server/v2/server"
)

// load reads docker-compose.yml with these profiles. It fails on what is no valid Compose file: unknown
// attributes, anchors, networks and volumes that are not declared, dependencies on what is no service.
func load(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{"../../docker-compose.yml"}, cli.WithName("timerd"), cli.WithProfiles(profiles))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// Without a profile there are three services; the cluster's profile adds its own.
func TestComposeProfiles(t *testing.T) {
	alone := []string{"nats", "redis", "timerd"}
	if got := load(t).ServiceNames(); !slices.Equal(got, alone) {
		t.Errorf("without a profile: %v, want %v", got, alone)
	}
	cluster := load(t, "cluster")
	want := append([]string{
		"nats-1", "nats-2", "nats-3", "redis-1", "redis-2", "redis-3", "redis-4", "redis-5", "redis-6", "redis-cluster", "timerd-1", "timerd-2", "timerd-3",
	}, alone...)
	slices.Sort(want)
	if got := cluster.ServiceNames(); !slices.Equal(got, want) {
		t.Errorf("with the profile cluster: %v, want %v", got, want)
	}
	for name, service := range cluster.Services {
		for dependency := range service.DependsOn {
			if strings.Contains(name, "-") != strings.Contains(dependency, "-") {
				t.Errorf("%s depends on %s, which is in another profile", name, dependency)
			}
		}
	}
}

// Each timerd of the cluster waits for its servers and connects to all of them.
func TestComposeTimerds(t *testing.T) {
	cluster := load(t, "cluster")
	for _, name := range []string{"timerd-1", "timerd-2", "timerd-3"} {
		service := cluster.Services[name]
		for variable, want := range map[string]string{
			"TIMERD_REDIS_MODE":      "cluster",
			"TIMERD_REDIS_URL":       "redis://redis-1:6379?addr=redis-2:6379&addr=redis-3:6379",
			"TIMERD_NATS_URL":        "nats://nats-1:4222,nats://nats-2:4222,nats://nats-3:4222",
			"TIMERD_STREAM_REPLICAS": "3",
		} {
			if got := service.Environment[variable]; got == nil || *got != want {
				t.Errorf("%s: %s is %v, want %q", name, variable, got, want)
			}
		}
		if got := service.DependsOn["redis-cluster"].Condition; got != types.ServiceConditionCompletedSuccessfully {
			t.Errorf("%s starts when redis-cluster is %q, want it completed", name, got)
		}
	}
}

// nats-server itself reads its command lines.
func TestComposeNATS(t *testing.T) {
	cluster := load(t, "cluster")
	for _, name := range []string{"nats-1", "nats-2", "nats-3"} {
		args := slices.Clone([]string(cluster.Services[name].Command))
		if len(args) < 2 || args[0] != "--config" {
			t.Fatalf("%s: the command is %q, want --config first", name, args)
		}
		args[1] = "../nats.conf" // what it is outside the container
		nothing := func() {}
		opts, err := server.ConfigureOptions(flag.NewFlagSet(name, flag.ContinueOnError), args, nothing, nothing, nothing)
		if err != nil {
			t.Fatal(err)
		}
		if opts.ServerName != name || opts.Cluster.Name != "timerd" || opts.Cluster.Port != 6222 || len(opts.Routes) != 3 || !opts.JetStream {
			t.Errorf("%s: name %s, cluster %+v, %d routes", name, opts.ServerName, opts.Cluster, len(opts.Routes))
		}
	}
}

// Nothing is published beyond this machine's loopback.
func TestComposePublishesOnTheLoopbackOnly(t *testing.T) {
	for name, service := range load(t, "cluster").Services {
		for _, port := range service.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s on %q, want 127.0.0.1", name, port.Published, port.HostIP)
			}
		}
	}
}
