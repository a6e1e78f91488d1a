package examples

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/examples/internal/servers"
	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
	"github.com/timerd-io/timerd/internal/devserver"
)

// page is a document whose blocks TestBlocks runs as they stand: sh are commands, and each must succeed; console are
// commands behind "$ ", with their output. Other blocks are no commands.
type page struct {
	path  string
	setup string // done before the page
}

func pages() []page {
	return []page{
		{"README.md", ""},
		{"docs/guide.md", ""},
		{"docs/webhooks.md", ""},
		{"docs/repeating.md", ""},
		{"docs/clients.md", ""},
		{"docs/runbook.md", `
			redis-cli ACL SETUSER timerd on '>OLD-PASSWORD' '~*' +@all
			timerd set shop:order:timeout:41 1s
			printf 'endpoints:\n  - {match: pay, url: "http://127.0.0.1:9000/"}\n' >deliver.yaml
			timerd deliver --config deliver.yaml &`},
	}
}

// notRun are the programs of blocks that the test does not run, with the reason, and a pattern for their arguments.
func notRun() map[string]struct{ why, args string } {
	return map[string]struct{ why, args string }{
		"docker": {"needs Docker; deploy/test parses the Compose file", `^compose up --build --wait$`},
		"make":   {"this test runs within it; the targets are compared with the Makefile", `^[a-z-]+$`},
		"go": {"timerd is not published: `go build -o consumer .` is the page's program, which is compiled in " +
			"this module", `^(build -o consumer \.|mod init shop|get github\.com/timerd-io/timerd/client|test \./clients/conformance)$`},
		"nats": {"the CLI of NATS is no part of timerd; tried by hand with version 0.5.1; test/system/faults " +
			"makes the same edits", `^(stream (edit|purge|backup|info)|consumer (rm|info|resume)) [A-Z_]+( |$)`},
		"systemctl": {"needs systemd", `^(start|stop|restart) [a-z-]+$`},
	}
}

// looks matches commands that change nothing, so that they may be repeated until the effects of earlier commands show.
var looks = regexp.MustCompile(
	`^(timerd (ls|get|status|doctor|health|holds|forecast|dead (ls|show)|deliveries|watch)|redis-cli (INFO|GET|TTL|CONFIG GET|DBSIZE|EXISTS))\b`)

// step is a command of a page, with its expected output; "" for any.
type step struct{ command, want string }

// steps splits a page's blocks into commands.
func steps(text string) (all []step) {
	for _, found := range regexp.MustCompile("(?ms)^ *```(sh|console)\n(.*?\n) *```$").FindAllStringSubmatch(text, -1) {
		if found[1] == "sh" {
			all = append(all, step{command: found[2]})
			continue
		}
		for line := range strings.Lines(found[2]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				all = append(all, step{command: command})
			} else if last := len(all) - 1; strings.HasSuffix(strings.TrimSpace(all[last].command), "\\") {
				all[last].command += line
			} else {
				all[last].want += line
			}
		}
	}
	return all
}

// plain replaces times, durations and causes of firings in a text by a sign, and white space by one space. It leaves
// out redis-cli's additions on a terminal.
func plain(text string) string {
	text = regexp.MustCompile(`(?m)^( *\d+\) )?(\(integer\) )?`).ReplaceAllString(text, "")
	text = strings.ReplaceAll(regexp.MustCompile(`(?m)^"(.*)"$`).ReplaceAllString(text, "$1"), `\"`, `"`)
	text = regexp.MustCompile(`\b(deadline|expired|sweep|reclaim)\b`).ReplaceAllString(text, "<trigger>")
	text = regexp.MustCompile(`\d{4}-\d\d-\d\dT[\d:.]+Z|@?\b\d{13}\b`).ReplaceAllString(text, "<time>")
	text = regexp.MustCompile(`[+-]?\b\d+(\.\d+)?(ns|µs|ms|s|m|h|d)\b( \d+(ms|s|m|h)\b)*( late)?`).ReplaceAllString(
		text, "<duration>")
	return strings.Join(strings.Fields(text), " ")
}

// matches compares a command's output with the page's; … stands for anything.
func matches(got, want string) bool {
	parts := strings.Split(plain(want), "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(strings.TrimSpace(parts[i]))
	}
	return want == "" || regexp.MustCompile(`^`+strings.Join(parts, `.*`)+`$`).MatchString(plain(got))
}

// terminal is a shell in a directory of its own.
type terminal struct {
	dir   string
	stdin io.Writer
	lines *bufio.Scanner

	n      int      // of commands
	behind []string // where programs in the background print
}

// openTerminal starts a shell in which timerd and redis-cli reach s. Programs that do not run are noted in the file
// "calls".
func openTerminal(t *testing.T, s *servers.Servers, binary, program string) *terminal {
	t.Helper()
	dir := t.TempDir()
	script := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o750); err != nil {
		t.Fatal(err)
	}
	script("timerd", `[ "$1" = dev ] || exec `+binary+` "$@"`) // s is its timerd dev
	script("redis-cli", "exec "+redisCLI(t)+" -e -u "+s.RedisURL+` "$@"`)
	for name := range notRun() {
		script(name, `echo "`+name+` $*" >>`+dir+`/calls; if [ "$*" = "build -o consumer ." ]; then cp `+program+` consumer; fi`)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"TIMERD_NAMESPACES=*", "TIMERD_REDIS_URL="+s.RedisURL, "TIMERD_NATS_URL="+s.NATSURL,
		"TIMERD_HTTP_ADDR=127.0.0.1:0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with all that it leaves in the background
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	x := &terminal{dir: dir, stdin: stdin, lines: bufio.NewScanner(stdout)}
	t.Cleanup(func() {
		for _, file := range x.behind {
			if text, err := os.ReadFile(file); t.Failed() && err == nil {
				t.Logf("what goes on in the background says\n%s", text)
			}
		}
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails only after the end
		cancel()
		_ = cmd.Wait()
	})
	time.AfterFunc(3*patience, cancel)
	return x
}

// run runs a command, and returns its output and its success.
func (x *terminal) run(command string) (printed string, ok bool) {
	x.n++
	file := filepath.Join(x.dir, strconv.Itoa(x.n)+".out")
	if strings.Contains(command, " &\n") || strings.HasSuffix(command, " &") {
		x.behind = append(x.behind, file)
	}
	_, err := fmt.Fprintf(x.stdin, "{ :\n%s\n} >%s 2>&1 </dev/null\necho done\n", command, file)
	ok = err == nil && x.lines.Scan() && x.lines.Text() == "done"
	text, err := os.ReadFile(file)
	return string(text), ok && err == nil
}

// The commands and programs in the documents run, page by page, on servers of their own.
func TestBlocks(t *testing.T) {
	binary := exampleenv.Timerd(t)
	targets, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages() {
		t.Run(filepath.Base(page.path), func(t *testing.T) {
			s, err := servers.Open(t.Context(), servers.Choice{Timerd: binary, Retry: "*=exp(1h,2,12h,12)"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			var free [2]int
			for i := range free {
				if free[i], err = devserver.FreePort(); err != nil {
					t.Fatal(err)
				}
			}
			raw, err := os.ReadFile(filepath.Join("..", page.path))
			if err != nil {
				t.Fatal(err)
			}
			text := strings.NewReplacer(
				"127.0.0.1:6379", s.Redis.Options().Addr, "127.0.0.1:4222", strings.TrimPrefix(s.NATSURL, "nats://"),
				"127.0.0.1:8080", s.HTTPAddr, "9000", strconv.Itoa(free[0]), "6399", strconv.Itoa(free[1]),
			).Replace(string(raw))

			x := openTerminal(t, s, binary, pageProgram(t, page.path, text))
			for _, step := range append([]step{{command: page.setup}}, steps(text)...) {
				var printed string
				for began := time.Now(); ; {
					var ok bool
					if printed, ok = x.run(step.command); !ok {
						t.Fatalf("it failed:\n%s\n%s", step.command, printed)
					}
					if matches(printed, step.want) || !looks.MatchString(step.command) ||
						time.Since(began) > patience/8 {
						break
					}
				}
				if !matches(printed, step.want) {
					t.Errorf("$ %s\nit printed\n%s\nwant\n%s", step.command, printed, step.want)
				}
			}
			calls, err := os.ReadFile(filepath.Join(x.dir, "calls"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			for call := range strings.Lines(string(calls)) {
				name, args, _ := strings.Cut(strings.TrimSpace(call), " ")
				if !regexp.MustCompile(notRun()[name].args).MatchString(args) {
					t.Errorf("%s is neither run nor known (%s)", call, notRun()[name].why)
				}
				if name == "make" && !strings.Contains(string(targets), "\n"+args+":") {
					t.Errorf("the Makefile has no %s", args)
				}
			}
		})
	}
}

// pageProgram builds the whole program in Go that a page has, and returns where it is; "" for a page without one.
// TestReadme has that of the README.
func pageProgram(t *testing.T, page, text string) string {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```go\n(package main\n.*?\n)```$").FindAllStringSubmatch(text, -1)
	if len(blocks) == 0 || page == "README.md" {
		return ""
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "main")
	if err := os.WriteFile(source, []byte(blocks[0][1]), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := command(t, "..", "go", "build", "-race", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// All blocks of the pages have a language, so that none is left out.
func TestBlocksHaveALanguage(t *testing.T) {
	t.Parallel()
	for _, page := range pages() {
		text, err := os.ReadFile(filepath.Join("..", page.path))
		if err != nil {
			t.Fatal(err)
		}
		inside := false
		for i, line := range strings.Split(string(text), "\n") {
			language, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
			if !fence {
				continue
			}
			if inside = !inside; inside && !slices.Contains(
				[]string{"sh", "console", "go", "js", "python", "json", "yaml", "text"}, language) {
				t.Errorf("%s:%d: a block of %q: say sh or console for commands, text for others", page.path, i+1,
					language)
			}
		}
	}
}
