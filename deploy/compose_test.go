package deploy_test

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
)

// composeServices returns the services of docker-compose.yml, each with its lines and those of the
// extension that it stands for.
func composeServices(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string]string{} // a name at the margin, or two spaces from it, and what is below
	section, name := "", ""
	services := map[string]string{}
	for line := range strings.Lines(string(text)) {
		trimmed := strings.TrimSpace(line)
		switch {
		case trimmed == "" || strings.HasPrefix(trimmed, "#"):
		case !strings.HasPrefix(line, " "):
			section, _, _ = strings.Cut(trimmed, ":")
			name = section
			if _, anchor, ok := strings.Cut(trimmed, "&"); ok {
				name = anchor
			}
		case section == "services" && regexp.MustCompile(`^  [a-z]`).MatchString(line):
			var rest string
			name, rest, _ = strings.Cut(trimmed, ":")
			services[name] = ""
			blocks[name] = rest
		default:
			blocks[name] += line
		}
	}
	for name := range services {
		services[name] = blocks[name]
		if m := regexp.MustCompile(`\*([a-z-]+)`).FindStringSubmatch(blocks[name]); m != nil {
			services[name] += blocks[m[1]]
		}
	}
	return services
}

// TestComposeProfiles checks that the services of the cluster are apart from the others, and that
// what they depend on is there.
func TestComposeProfiles(t *testing.T) {
	services := composeServices(t)
	if len(services) != 16 {
		t.Fatalf("%d services, want 3, and 13 of the cluster", len(services))
	}
	for name, text := range services {
		of := strings.Contains(name, "-")
		if strings.Contains(text, "profiles: [cluster]") != of {
			t.Errorf("%s is in the profile of the cluster: %v, want %v", name, !of, of)
		}
		for _, m := range regexp.MustCompile(`([a-z0-9-]+): \{condition:`).FindAllStringSubmatch(text, -1) {
			if _, ok := services[m[1]]; !ok {
				t.Errorf("%s depends on %s, which is no service", name, m[1])
			}
		}
	}
	for _, want := range []string{"TIMERD_REDIS_MODE: cluster", "redis://redis-1:6379?addr=redis-2:6379&addr=redis-3:6379"} {
		if !strings.Contains(services["timerd-2"], want) {
			t.Errorf("timerd-2 lacks %q in\n%s", want, services["timerd-2"])
		}
	}
}

// TestComposeNATS has nats-server read its command line.
func TestComposeNATS(t *testing.T) {
	for _, name := range []string{"nats-1", "nats-2", "nats-3"} {
		line := regexp.MustCompile(`command: \[(.*)\]`).FindStringSubmatch(composeServices(t)[name])
		if line == nil {
			t.Fatalf("%s has no command", name)
		}
		args := strings.Split(strings.ReplaceAll(line[1], `"`, ""), ", ")
		args[1] = "nats.conf"
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
