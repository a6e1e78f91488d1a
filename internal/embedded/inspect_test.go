package embedded_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/embedded"
	"github.com/timerd-io/timerd/internal/testenv"
)

func TestInspect(t *testing.T) {
	testenv.NoLeaks(t)
	conf := natsAt(t, "embedded://127.0.0.1:0")
	conf.DataDir = filepath.Join(conf.DataDir, "not", "there", "yet")
	inspect := func(exists, running bool, server string) {
		t.Helper()
		got, err := embedded.Inspect(conf.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		if got.Free == 0 {
			t.Error("no free space")
		}
		if got.Free = 0; got != (embedded.State{Exists: exists, Running: running, Server: server}) {
			t.Errorf("%+v, want exists %t, running %t, server %s", got, exists, running, server)
		}
	}
	inspect(false, false, "")
	if _, err := os.Stat(filepath.Dir(conf.DataDir)); !os.IsNotExist(err) {
		t.Errorf("something was made: %v", err)
	}
	var logs testenv.Output
	for range 2 {
		server, err := connect.Connector{Logger: logs.Logger()}.Embedded(t.Context(), conf, 1)
		if err != nil {
			t.Fatal(err)
		}
		inspect(true, true, server.ID())
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		inspect(true, false, "")
	}
	before, err := os.ReadDir(conf.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	inspect(true, false, "")
	if after, err := os.ReadDir(conf.DataDir); err != nil || len(after) != len(before) {
		t.Errorf("%d files became %d, %v", len(before), len(after), err)
	}
}

func TestInspectReportsFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		file:            "is no directory",
		file + "/below": "not a directory",
		"/dev/null":     "/dev/null is no directory",
	} {
		if state, err := embedded.Inspect(dir); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "TIMERD_DATA_DIR") {
			t.Errorf("%s: %+v, %v", dir, state, err)
		}
	}
}

// Several looks do not keep a server from starting.
func TestInspectDoesNotDisturb(t *testing.T) {
	testenv.NoLeaks(t)
	conf := natsAt(t, "embedded://127.0.0.1:0")
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := embedded.Inspect(conf.DataDir); err != nil {
				t.Error(err)
			}
		}
	}()
	var logs testenv.Output
	for range 3 {
		server, err := connect.Connector{Logger: logs.Logger()}.Embedded(t.Context(), conf, 1)
		if err != nil {
			t.Errorf("beside a look at the directory: %v", err)
			break
		}
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
}
