package doctor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/testenv"
)

// With NATS within timerd, doctor looks at the data directory, and never takes somebody else's server for that of
// timerd.
func TestEmbedded(t *testing.T) {
	testenv.NoLeaks(t)
	redis, stranger := testenv.Redis(t), testenv.NATS(t)
	dir := filepath.Join(t.TempDir(), "data")
	check := func(address string) []diag.Finding {
		t.Helper()
		testenv.SetVariables(t, map[string]string{
			"TIMERD_REDIS_URL": redis.URL(0), "TIMERD_NAMESPACES": "*", "TIMERD_NATS_URL": "embedded://" + address,
			"TIMERD_DATA_DIR": dir,
		})
		findings, _, valid := doctor.CheckAll(t.Context())
		if !valid {
			t.Fatalf("the configuration is not valid:\n%s", describe(findings))
		}
		return findings
	}
	aboutNATS := func(findings []diag.Finding) bool {
		return slices.ContainsFunc(findings, func(f diag.Finding) bool {
			return f.Check == "jetstream" ||
				f.Check == "nats version"
		})
	}
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	free := devserver.Address(port)

	findings := check(free)
	wants(t, findings, "data directory", diag.OK, dir+" is not there yet", "free")
	wants(t, findings, "nats", diag.Warn, "no timerd runs it now", "start timerd")
	findings = check(stranger.Addr())
	wants(t, findings, "nats", diag.Fail, "timerd cannot start it", "address already in use", "name a free address")
	if aboutNATS(findings) {
		t.Errorf("a stranger's server was checked:\n%s", describe(findings))
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("doctor made the directory: %v", err)
	}

	var logs testenv.Output
	conf := func() config.NATS {
		c, err := config.Read(config.SectionNATS)
		if err != nil {
			t.Fatal(err)
		}
		return c.NATS
	}
	check(free) // for its variables
	server, err := connect.Connector{Logger: logs.Logger()}.Embedded(t.Context(), conf(), 1)
	if err != nil {
		t.Fatal(err)
	}
	findings = check(free)
	wants(t, findings, "data directory", diag.OK, dir+"; ")
	wants(t, findings, "nats", diag.OK, "nats://"+free)
	wants(t, findings, "jetstream", diag.OK, "enabled")
	findings = check(stranger.Addr())
	wants(t, findings, "nats", diag.Warn, "another server listens at nats://"+stranger.Addr(), "name a free address")
	if aboutNATS(findings) {
		t.Errorf("a stranger's server was checked:\n%s", describe(findings))
	}
	if err := doctor.AdoptStreams(t.Context(), &logs); err == nil ||
		!strings.Contains(err.Error(), "is not the one of TIMERD_DATA_DIR") {
		t.Errorf("adopting the streams of a stranger: %v", err)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if nc, err := nats.Connect("nats://" + free); err == nil {
		nc.Close()
		t.Error("it goes on")
	}

	dir = "/dev/null"
	findings = check(free)
	wants(t, findings, "data directory", diag.Fail, "/dev/null is no directory", "let TIMERD_DATA_DIR name")
	if aboutNATS(findings) {
		t.Errorf("NATS was checked:\n%s", describe(findings))
	}
}
