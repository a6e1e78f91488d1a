// Package docs_test compares the documents with the code, and checks the rules of the house.
package docs_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is where the packages are; the names below leave it out.
const module = "github.com/timerd-io/timerd/"

// layers returns the module's packages from the bottom up. A package imports only
// packages of the layers below its own, so those of one layer do not know each other.
// A new package takes one more word: in the lowest layer above all that it imports.
func layers() [][]string {
	return [][]string{
		// Names, and tools that know nothing of timers.
		{
			"keys", "deploy", "docs/schemas", "internal/backoff", "internal/diag", "internal/embedded",
			"internal/lanes", "internal/textfile", "internal/yamlfile",
			"torture/internal/clockstep", "torture/internal/history", "test/report",
		},
		{"internal/cron", "internal/policy", "internal/devserver"},
		{"event", "internal/testenv/lab"},
		// The schedule.
		{"schedule", "internal/deadletter", "torture/internal/checker", "torture/internal/producers",
			"torture/internal/receiver", "torture/internal/servers"},
		{"internal/query", "internal/rights", "internal/streams", "internal/travel"},
		// The parts, which meet in the service only, and the packages for Go programs.
		{"listener", "reconciler", "notify", "internal/history", "internal/retry", "internal/ledger", "client",
			"internal/testenv", "torture/internal/nemesis", "torture/internal/report"},
		{"internal/consume", "internal/deliver", "internal/admin", "internal/config", "internal/status"},
		{"test/system", "client/admin", "internal/connect"},
		{"internal/console", "internal/doctor", "internal/testenv/timerdtest"},
		{"internal/service"},
		{"internal/standalone"},
		// Programs, and timerd for tests of Go programs.
		{"timerdtest", "cmd/timerd", "torture", "clients/conformance", "examples/internal/servers"},
		{"examples/internal/testenv", "examples/webhooks", "examples/order-timeout", "examples/settlement"},
	}
}

// talkToRedis returns the packages that import go-redis, and why they may.
func talkToRedis() map[string]string {
	return map[string]string{
		"schedule":                    "every step on the index",
		"internal/query":              "reads the index",
		"internal/rights":             "tries each command that others run",
		"client":                      "the function library's calls",
		"client/admin":                "takes a client of a user's",
		"internal/testenv/timerdtest": "servers of tests",
		"listener":                    "its subscription",
		"internal/doctor":             "its checks",
		"internal/config":             "reads go-redis's URLs",
		"internal/connect":            "wiring",
		"internal/streams":            "the identity, which is no part of the index",
		"internal/service":            "wiring",
		"cmd/timerd":                  "wiring",
		"internal/devserver":          "asks its servers",
		"timerdtest":                  "gives its user a client",
		"internal/testenv/lab":        "builds clusters",
		"internal/testenv":            "servers of tests",
		"test/system":                 "whole systems of tests",
		"torture":                     "its producers and faults are clients",
		"torture/internal/nemesis":    "faults",
		"torture/internal/producers":  "clients",
		"torture/internal/servers":    "servers",
		"examples/internal/servers":   "servers of examples",
		"examples/order-timeout":      "a client",
		"examples/settlement":         "a client",
	}
}

// goRedis begins the import paths of the Redis client.
const goRedis = "github.com/redis/go-redis/"

// natsClient begins those of the NATS client.
const natsClient = "github.com/nats-io/nats.go"

// imports returns the imports of each package of the module with code, without its tests. Packages of the module are
// named without it.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports,GoFiles", "./...")
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string][]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath string
			Imports    []string
			GoFiles    []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		if len(p.GoFiles) == 0 {
			continue // it has only tests
		}
		var imported []string
		for _, path := range p.Imports {
			imported = append(imported, strings.TrimPrefix(path, module))
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = imported
	}
}

func TestImportsGoDown(t *testing.T) {
	t.Parallel()
	layer := map[string]int{}
	for i, names := range layers() {
		for _, name := range names {
			layer[name] = i
		}
	}
	all := imports(t)
	delete(all, "docs") // these tests
	for name, imported := range all {
		lowest := 0
		for _, other := range imported {
			if at, ok := layer[other]; ok {
				lowest = max(lowest, at+1)
			}
		}
		at, ok := layer[name]
		if !ok {
			t.Errorf("package %s has no layer: add %q to layer %d, or a higher one, of layers in docs/imports_test.go",
				name, name, lowest)
			continue
		}
		for _, other := range imported {
			if below, ok := layer[other]; ok && below >= at {
				t.Errorf("package %s of layer %d imports %s of layer %d: have it ask for an interface, or for a "+
					"value, that %s gives it",
					name, at, other, below, "its caller")
			}
		}
	}
	for name := range layer {
		if _, ok := all[name]; !ok {
			t.Errorf("there is no package %s: take it out of layers in docs/imports_test.go", name)
		}
	}
}

// What a program gets with the Go client is keys, event, the Redis and the NATS client, and leaves, which import
// nothing else.
func TestClientImportsLittle(t *testing.T) {
	t.Parallel()
	all := imports(t)
	base := []string{"client", "event", "keys"}
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if seen[name] {
			return
		}
		seen[name] = true
		for _, path := range all[name] {
			_, ours := all[path]
			first, _, _ := strings.Cut(path, "/")
			switch {
			case ours && (slices.Contains(base, name) || slices.Contains(base[1:], path)):
				visit(path)
			case ours:
				t.Errorf("client needs %s, which is no leaf: it imports %s", name, path)
			case strings.Contains(first, ".") && !strings.HasPrefix(path, goRedis) &&
				!strings.HasPrefix(path, natsClient):
				t.Errorf("client needs %s, which imports %s", name, path)
			}
		}
	}
	visit("client")
	if len(seen) < len(base) {
		t.Errorf("the test has seen %v alone", seen)
	}
}

// What tests start is no part of the program.
func TestProgramHasNoTestServers(t *testing.T) {
	t.Parallel()
	all := imports(t)
	seen := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if _, ours := all[name]; !ours || seen[name] {
			return
		}
		seen[name] = true
		for _, path := range all[name] {
			if strings.HasPrefix(path, "internal/testenv") || path == "testing" {
				t.Errorf("cmd/timerd needs %s, which imports %s", name, path)
			}
			visit(path)
		}
	}
	visit("cmd/timerd")
	if len(seen) < 20 {
		t.Errorf("the test has seen %v alone", seen)
	}
}

func TestImportersOfGoRedis(t *testing.T) {
	t.Parallel()
	allowed := talkToRedis()
	all := imports(t)
	for name, imported := range all {
		talks := slices.ContainsFunc(imported, func(path string) bool { return strings.HasPrefix(path, goRedis) })
		if _, ok := allowed[name]; talks && !ok {
			t.Errorf("package %s imports go-redis: its use of Redis belongs in schedule.Node; if not, add it to "+
				"talkToRedis in docs/imports_test.go", name)
		} else if ok && !talks {
			t.Errorf("package %s does not import go-redis: take it out of talkToRedis in docs/imports_test.go", name)
		}
	}
	for name := range allowed {
		if _, ok := all[name]; !ok {
			t.Errorf("there is no package %s: take it out of talkToRedis in docs/imports_test.go", name)
		}
	}
}

var update = flag.Bool("update", false, "write the generated parts of the documents")

// The import graph stands between these lines of architecture.md.
const (
	drawingBegins = "<!-- imports:begin; go test ./docs -run Drawn -update -->\n"
	drawingEnds   = "<!-- imports:end -->\n"
)

func TestImportsAreDrawn(t *testing.T) {
	t.Parallel()
	const file = "architecture.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), drawingBegins)
	old, after, ended := strings.Cut(rest, drawingEnds)
	if !ok || !ended {
		t.Fatalf("%s has not the lines %q and %q", file, drawingBegins, drawingEnds)
	}
	drawn := drawing(imports(t))
	switch {
	case drawn == old:
	case *update:
		if err := os.WriteFile(file, []byte(before+drawingBegins+drawn+drawingEnds+after), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("the imports drawn in %s are not those of the code: run `go test ./docs -run Drawn -update`", file)
	}
}

// drawing is the graph of the packages that timerd and its Go client are made of. It
// leaves out an arrow where another way leads there too.
func drawing(all map[string][]string) string {
	reached := map[string]map[string]bool{}
	var reach func(name string) map[string]bool
	reach = func(name string) map[string]bool {
		if reached[name] == nil {
			reached[name] = map[string]bool{}
			for _, other := range all[name] {
				if _, ours := all[other]; ours {
					reached[name][other] = true
					for further := range reach(other) {
						reached[name][further] = true
					}
				}
			}
		}
		return reached[name]
	}
	drawn := map[string]bool{}
	for _, program := range []string{"cmd/timerd", "client", "client/admin"} {
		drawn[program] = true
		for name := range reach(program) {
			drawn[name] = true
		}
	}
	var arrows []string
	for name := range drawn {
		for _, other := range all[name] {
			if !drawn[other] {
				continue
			}
			if slices.ContainsFunc(all[name], func(between string) bool { return reach(between)[other] }) {
				continue
			}
			arrows = append(arrows, fmt.Sprintf("  %s --> %s\n", name, other))
		}
	}
	slices.Sort(arrows)
	return "```mermaid\ngraph TD\n" + strings.Join(arrows, "") + "```\n"
}
