package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/doctor"
	"github.com/timerd-io/timerd/internal/status"
)

// TestReferenceNamesEverything compares the reference with the program's help and
// with the metrics in the code.
func TestReferenceNamesEverything(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("reference.md")
	if err != nil {
		t.Fatal(err)
	}
	timerd := program(t)
	for _, kind := range []struct {
		name string
		told string // by the reference
		code []string
	}{
		{"setting", `\bTIMERD_[A-Z_]*[A-Z]\b`, regexp.MustCompile(`(?m)^  (TIMERD_\w+)`).FindAllString(
			help(t, timerd, "config"), -1)},
		{"command", "`timerd(?: [a-z]+)+", append(commands(t, timerd), topics(t, timerd)...)},
		{"metric", `\btimerd_[a-z_]+\b`, metrics(t)},
	} {
		var told, there []string
		for _, name := range regexp.MustCompile(kind.told).FindAllString(string(text), -1) {
			told = append(told, strings.Trim(name, "` "))
		}
		for _, name := range kind.code {
			there = append(there, strings.TrimSpace(name))
		}
		if len(there) == 0 {
			t.Errorf("no %s found in the code: this test has to be told where they are now", kind.name)
		}
		for _, name := range there {
			if !slices.Contains(told, name) {
				t.Errorf("docs/reference.md does not name the %s %s", kind.name, name)
			}
		}
		for _, name := range told {
			if !slices.Contains(there, name) {
				t.Errorf("docs/reference.md names the %s %s, which timerd has not", kind.name, name)
			}
		}
	}
}

// TestReferenceHasDefaultsOfSettings compares the first default in a setting's row with that of the program's help.
func TestReferenceHasDefaultsOfSettings(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(files(t, "reference.md")["docs/reference.md"], "\n## Configuration\n")
	told := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`TIMERD_.*?) \\| *(?:`([^`]*)`)?").FindAllStringSubmatch(table,
		-1) {
		for _, name := range regexp.MustCompile(`TIMERD_\w+`).FindAllString(row[1], -1) {
			told[name] = row[2]
		}
	}
	settings := regexp.MustCompile(`(?m)^  (TIMERD_\w+)(?: \(default (.*)\))?$`).FindAllStringSubmatch(
		help(t, program(t), "config"), -1)
	if len(settings) == 0 {
		t.Error("no settings found in the help: this test has to be told where they are now")
	}
	for _, setting := range settings {
		if name, want := setting[1], setting[2]; told[name] != want {
			t.Errorf("docs/reference.md gives %s the default %q, timerd %q", name, told[name], want)
		}
	}
}

// TestReferenceHasDefaultsOfFlags compares the defaults that a command's row gives, as in `--minutes` (60) or [-n 5],
// with the command's help.
func TestReferenceHasDefaultsOfFlags(t *testing.T) {
	t.Parallel()
	timerd, found := program(t), 0
	reference := files(t, "reference.md")["docs/reference.md"]
	for _, row := range regexp.MustCompile("(?m)^\\| `timerd ((?:[a-z]+ ?)+).*$").FindAllStringSubmatch(reference, -1) {
		for _, flag := range regexp.MustCompile(
			"(?:`(--[a-z-]+)` \\(|\\[(-[a-z]) )([\\d,]+)[\\])]").FindAllStringSubmatch(row[0], -1) {
			found++
			name, told := flag[1]+flag[2], strings.ReplaceAll(flag[3], ",", "")
			usage := regexp.MustCompile(`(?ms)^ +(?:-\w, )?` + name +
				`\b.*?\n(?: +-|\z)`).FindString(help(t, timerd, strings.Fields(row[1])...))
			if !strings.Contains(usage, "(default "+told+")") {
				t.Errorf("docs/reference.md gives %s of timerd %s the default %s, its help says %q", name,
					strings.TrimSpace(row[1]), told, usage)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d defaults of flags found in docs/reference.md: this test has to be told how they look now",
			found)
	}
}

// program returns the path of timerd: TIMERD_TEST_PROGRAM, or else one that is built with the race detector, like the
// tests, so that little has to be compiled for it.
func program(t *testing.T) string {
	t.Helper()
	if timerd := os.Getenv("TIMERD_TEST_PROGRAM"); timerd != "" {
		return timerd
	}
	timerd := filepath.Join(t.TempDir(), "timerd")
	if out, err := exec.Command("go", "build", "-race", "-o", timerd, "../cmd/timerd").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return timerd
}

func help(t *testing.T, timerd string, command ...string) string {
	t.Helper()
	run := exec.Command(timerd, append(command, "--help")...)
	// the race detector has a program wait for a second at its end
	run.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	out, err := run.Output()
	if err != nil {
		t.Fatalf("timerd %s --help: %v", strings.Join(command, " "), err)
	}
	return string(out)
}

// commands returns the commands with an action of their own: without subcommands, or with arguments.
func commands(t *testing.T, timerd string, above ...string) []string {
	t.Helper()
	text := help(t, timerd, above...)
	name := strings.Join(append([]string{"timerd"}, above...), " ")
	if !strings.Contains(text, " [command]\n") {
		return []string{name}
	}
	var found []string
	if regexp.MustCompile(`(?m)^  ` + name + ` [A-Z]`).MatchString(text) {
		found = append(found, name)
	}
	for _, line := range regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z]`).FindAllStringSubmatch(text, -1) {
		if name := line[1]; name != "help" {
			found = append(found, commands(t, timerd, append(slices.Clone(above), name)...)...)
		}
	}
	return found
}

// topics returns the help topics other than commands.
func topics(t *testing.T, timerd string) []string {
	t.Helper()
	_, list, _ := strings.Cut(help(t, timerd), "Help Topics:\n")
	return regexp.MustCompile(`(?m)^  (timerd help [a-z]+)`).FindAllString(list, -1)
}

// metrics returns the names that the code gives Prometheus: the first argument of a
// call whose second one is its help, or the field Name of its options.
func metrics(t *testing.T) []string {
	t.Helper()
	var found []string
	for name, text := range files(t, ".go") {
		if strings.HasSuffix(name, "_test.go") || !strings.HasPrefix(name, "internal/service/") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		note := func(expression ast.Expr) {
			if name := literal(expression); regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(name) {
				found = append(found, "timerd_"+name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if len(n.Args) > 1 && strings.HasSuffix(literal(n.Args[1]), ".") {
					note(n.Args[0])
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Name" {
					note(n.Value)
				}
			}
			return true
		})
	}
	return found
}

// literal is the text of a string literal, or of a sum of them; "" for anything else.
func literal(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value) // the parser has read it
			return text
		}
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

// TestRunbookNamesEveryCheck compares the runbook with the tables of the checks of `timerd status` and `timerd doctor`.
func TestRunbookNamesEveryCheck(t *testing.T) {
	t.Parallel()
	_, table, _ := strings.Cut(files(t, "runbook.md")["docs/runbook.md"], "\n## Lines of status and doctor\n")
	table, _, _ = strings.Cut(table, "\n### ")
	var told []string
	for _, row := range regexp.MustCompile("(?m)^\\|([^|]*`[^|]*)\\|").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([a-z ]+)`").FindAllStringSubmatch(row[1], -1) {
			told = append(told, name[1])
		}
	}
	checks := slices.Concat(status.Checks(), doctor.Checks())
	for _, check := range checks {
		if !slices.Contains(told, check) {
			t.Errorf("docs/runbook.md has no row for the check %q", check)
		}
	}
	for _, check := range status.Checks() { // the console links to it
		_, anchor, _ := strings.Cut(diag.Runbook(check), "#")
		if !strings.Contains(table, `<a id="`+anchor+`"></a>`) {
			t.Errorf("docs/runbook.md has no anchor %s", anchor)
		}
	}
	for _, name := range told {
		if !slices.Contains(checks, name) {
			t.Errorf("docs/runbook.md has a row for the check %q, which is in no table", name)
		}
	}
}

// TestRunbookNamesAPageForEachQuestion compares the runbook's questions with its table of pages, and these with the
// console's document and routes.
func TestRunbookNamesAPageForEachQuestion(t *testing.T) {
	t.Parallel()
	runbook, console := files(t, "runbook.md")["docs/runbook.md"], files(t, "console.md")["docs/console.md"]
	routes := files(t, "routes.go")["internal/console/routes.go"]
	_, rest, _ := strings.Cut(runbook, "\n| question |")
	table, _, _ := strings.Cut(rest, "\n\n")
	for _, heading := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(runbook, -1) {
		anchor := "(#" + strings.ToLower(strings.ReplaceAll(heading[1], " ", "-")) + ")"
		tasks := []string{"Backup and restore", "Change a password without a gap", "Signs of an outage"}
		if !slices.Contains(tasks, heading[1]) && !strings.Contains(table, anchor) {
			t.Errorf("docs/runbook.md names no page for the question %q", heading[1])
		}
	}
	pages := 0
	for _, row := range regexp.MustCompile(`(?m)\| ([^|]*) \|$`).FindAllStringSubmatch(table, -1) {
		for _, page := range regexp.MustCompile("`(/[^`]*)`").FindAllStringSubmatch(row[1], -1) {
			pages++
			route := regexp.MustCompile(`"(GET )?` + regexp.QuoteMeta(strings.ReplaceAll(page[1], "KEY", "{key}")) +
				`({\$})?"`)
			if !strings.Contains(console, "| `"+page[1]+"` |") || !route.MatchString(routes) {
				t.Errorf("docs/runbook.md sends to %s, which docs/console.md or the console does not have", page[1])
			}
		}
	}
	if pages == 0 {
		t.Error("docs/runbook.md names no page of the console")
	}
}
