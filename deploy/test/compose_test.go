package deploytest

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/nats-io/nats-server/v2/server"
)

// load reads docker-compose.yml with these profiles. It fails on an invalid Compose file: unknown attributes,
// undeclared anchors, networks and volumes, dependencies on unknown services.
func load(t *testing.T, profiles ...string) *types.Project {
	t.Helper()
	project, err := loadFile(t, composeFile, nil, profiles...)
	if err != nil {
		t.Fatal(err)
	}
	return project
}

const composeFile = "../../docker-compose.yml"

func loadFile(t *testing.T, path string, env []string, profiles ...string) (*types.Project, error) {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{path}, cli.WithName("timerd"), cli.WithProfiles(profiles),
		cli.WithEnv(env))
	if err != nil {
		t.Fatal(err)
	}
	return options.LoadProject(t.Context())
}

// Without a profile there are three services; the cluster's profile adds its own.
func TestComposeProfiles(t *testing.T) {
	alone := []string{"nats", "redis", "timerd"}
	if got := load(t).ServiceNames(); !slices.Equal(got, alone) {
		t.Errorf("without a profile: %v, want %v", got, alone)
	}
	cluster := load(t, "cluster")
	want := append([]string{
		"nats-1", "nats-2", "nats-3", "redis-1", "redis-2", "redis-3", "redis-4", "redis-5", "redis-6", "redis-cluster",
		"timerd-1", "timerd-2", "timerd-3",
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
		args[1] = "../nats.conf" // its path outside the container
		nothing := func() {}
		opts, err := server.ConfigureOptions(flag.NewFlagSet(name, flag.ContinueOnError), args, nothing, nothing,
			nothing)
		if err != nil {
			t.Fatal(err)
		}
		if opts.ServerName != name || opts.Cluster.Name != "timerd" || opts.Cluster.Port != 6222 ||
			len(opts.Routes) != 3 || !opts.JetStream {
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

// A stop takes up to 10 s, and `up --wait` waits for services with a health check.
func TestComposeStopsAndWaits(t *testing.T) {
	for name, service := range load(t, "cluster").Services {
		if strings.HasPrefix(name, "timerd") {
			if got := service.StopGracePeriod; got == nil || *got != types.Duration(15*time.Second) {
				t.Errorf("%s: stop_grace_period is %v, want 15s", name, got)
			}
		}
		if check := service.HealthCheck; name != "redis-cluster" && (check == nil || len(check.Test) == 0) {
			t.Errorf("%s has no health check", name)
		}
	}
}

// One image is built for the three timerds of the cluster, with a version, and without a registry.
func TestComposeBuildsOneImage(t *testing.T) {
	cluster := load(t, "cluster")
	for name, policy := range map[string]string{"timerd": "", "timerd-1": types.PullPolicyBuild,
		"timerd-2": types.PullPolicyNever, "timerd-3": types.PullPolicyNever} {
		service := cluster.Services[name]
		if service.PullPolicy != policy || (service.Image == "timerd-cluster") != (name != "timerd") {
			t.Errorf("%s has the image %q, pulled %q", name, service.Image, service.PullPolicy)
		}
		if builds := name == "timerd" || name == "timerd-1"; builds != (service.Build != nil) {
			t.Errorf("%s is built: %t", name, !builds)
		} else if _, ok := buildArgs(service)["VERSION"]; builds && !ok {
			t.Errorf("%s is built without a VERSION", name)
		}
	}
	if ignored := read(t, "../../.dockerignore"); strings.Contains("\n"+ignored, "\n.git\n") {
		t.Error(".dockerignore leaves out .git, which says the version")
	}
}

// A server of NATS is healthy once it knows a leader, and a shard that is away stops no other.
func TestComposeClusterComesUp(t *testing.T) {
	for name, service := range load(t, "cluster").Services {
		test := healthTest(service)
		if strings.HasPrefix(name, "nats") && !strings.HasSuffix(test, " http://127.0.0.1:8222/healthz") {
			t.Errorf("%s is healthy by %q, want plain /healthz", name, test)
		}
		if regexp.MustCompile(`^redis-\d`).MatchString(name) &&
			!strings.Contains(strings.Join(service.Command, " "), "--cluster-require-full-coverage no") {
			t.Errorf("%s: %q", name, service.Command)
		}
	}
}

// The console's lines work once the comment signs are gone, and not without a password.
func TestComposeConsole(t *testing.T) {
	text := regexp.MustCompile(`(?m)^      # (TIMERD_|- )`).ReplaceAllString(read(t, composeFile), "      $1")
	path := filepath.Join(t.TempDir(), "docker-compose.yml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadFile(t, path, nil); err == nil || !strings.Contains(err.Error(), "CONSOLE_PASSWORD") {
		t.Errorf("without a password: %v", err)
	}
	project, err := loadFile(t, path, []string{"CONSOLE_PASSWORD=s3cr3t"})
	if err != nil {
		t.Fatal(err)
	}
	timerd := project.Services["timerd"]
	for name, want := range map[string]string{"TIMERD_CONSOLE_ADDR": "0.0.0.0:8081",
		"TIMERD_CONSOLE_PASSWORD": "s3cr3t", "TIMERD_CONSOLE_ACTIONS": "on"} {
		if got := timerd.Environment[name]; got == nil || *got != want {
			t.Errorf("%s is %v, want %q", name, got, want)
		}
	}
	if len(timerd.Ports) != 2 || timerd.Ports[1].Target != 8081 || timerd.Ports[1].HostIP != "127.0.0.1" {
		t.Errorf("ports: %+v", timerd.Ports)
	}
}

// The fixed addresses are in the network, and no other container can get one of them.
func TestComposeAddresses(t *testing.T) {
	cluster := load(t, "cluster")
	pools := cluster.Networks["cluster"].Ipam.Config
	if len(pools) != 1 {
		t.Fatalf("%d pools of addresses", len(pools))
	}
	subnet, others := netip.MustParsePrefix(pools[0].Subnet), netip.MustParsePrefix(pools[0].IPRange)
	for _, taken := range []string{"172.16.0.0/12", "192.168.0.0/16", "10.128.0.0/9", "10.0.0.0/14", "10.42.0.0/15",
		"10.96.0.0/12"} {
		if subnet.Overlaps(netip.MustParsePrefix(taken)) {
			t.Errorf("%s overlaps %s, where clouds, Docker or Kubernetes have their networks", subnet, taken)
		}
	}
	for name, service := range cluster.Services {
		network := service.Networks["cluster"]
		if network == nil || network.Ipv4Address == "" {
			continue
		}
		if at := netip.MustParseAddr(network.Ipv4Address); !subnet.Contains(at) || others.Contains(at) {
			t.Errorf("%s has the address %s, want one in %s and not in %s", name, at, subnet, others)
		}
		if command := strings.Join(cluster.Services["redis-cluster"].Command, " "); !strings.Contains(command,
			" "+network.Ipv4Address+":6379") {
			t.Errorf("redis-cluster does not name %s of %s", network.Ipv4Address, name)
		}
	}
}

// The commands in the header are for existing services, and name the profile if needed.
func TestComposeHeader(t *testing.T) {
	text, err := os.ReadFile("../../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	alone, cluster := load(t), load(t, "cluster")
	header, _, _ := strings.Cut(string(text), "\nx-")
	commands := regexp.MustCompile(`(?m)^#   docker compose (--profile cluster )?(\w+)(.*)$`).FindAllStringSubmatch(
		header, -1)
	if len(commands) < 8 {
		t.Fatalf("the header has %d commands", len(commands))
	}
	for _, command := range commands {
		project := alone
		if command[1] != "" {
			project = cluster
		}
		for word := range strings.FieldsSeq(command[3]) {
			if strings.HasPrefix(word, "-") {
				continue
			}
			if _, ok := project.Services[word]; !ok {
				t.Errorf("%s: there is no service %s", command[0], word)
			}
			if command[2] == "exec" {
				break
			}
		}
	}
}

func buildArgs(s types.ServiceConfig) types.MappingWithEquals {
	if s.Build == nil {
		return nil
	}
	return s.Build.Args
}

func healthTest(s types.ServiceConfig) string {
	if s.HealthCheck == nil {
		return ""
	}
	return strings.Join(s.HealthCheck.Test, " ")
}
