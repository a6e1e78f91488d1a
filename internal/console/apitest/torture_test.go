package apitest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/timerd-io/timerd/internal/testenv"
)

// tortured returns the file with the messages of a torture run: of TestTorture in `make test-all`, else of a short run
// of its own.
func tortured(t *testing.T) string {
	t.Helper()
	if file, is := os.LookupEnv(testenv.VariablePrefix + "MESSAGES"); is {
		return file
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "messages.jsonl")
	for _, args := range [][]string{
		{"go", "build", "-trimpath", "-o", dir, "./cmd/timerd", "./torture"},
		{filepath.Join(dir, "torture"), "run", "-timerd", filepath.Join(dir, "timerd"), "-minutes", "0.3",
			"-max-delay", "4s", "-messages", file},
	} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = "../../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	return file
}

// Every firing, dead letter and record of a delivery of a torture run fits its schema.
func TestSchemasFitATortureRun(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(tortured(t))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]*jsonschema.Schema{"event": compiled(t, "event"), "dead": compiled(t, "dead"),
		"delivery": compiled(t, "delivery")}
	checked, bad := map[string]int{}, 0
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, len(text)+1)
	for lines.Scan() {
		var line struct {
			Schema  string
			Message json.RawMessage
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		checked[line.Schema]++
		if err := fits(t, all[line.Schema], string(line.Message)); err != nil && bad < 10 {
			bad++
			t.Errorf("%s does not fit the schema %s: %v", line.Message, line.Schema, err)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for name := range all {
		if checked[name] < 10 {
			t.Errorf("%v were checked, want at least 10 of %s", checked, name)
		}
	}
	t.Logf("checked: %v", checked)
}
