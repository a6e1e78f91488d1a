package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each command has a manual page with the words of its help.
func TestMan(t *testing.T) {
	dir := t.TempDir()
	ok(t, "man", dir)
	for _, path := range commandPaths(newRoot()) {
		name := strings.Join(append([]string{"timerd"}, path...), "-") + ".1"
		_, err := os.Stat(filepath.Join(dir, name))
		if hidden := name == "timerd-man.1" || name == "timerd-config.1"; (err == nil) == hidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	page, err := os.ReadFile(filepath.Join(dir, "timerd-consume.1"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(page), `\`, "")
	for _, want := range []string{
		"\n  {\"id\":\"...\",\"result\":\"done\"}                  the event is acknowledged\n",
		"policy of TIMERD_RETRY;\n", "app[:module[:type]]", "timerd consume pay --concurrency 16",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("timerd-consume.1 lacks %q:\n%s", want, text)
		}
	}
}
