package examples

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/examples/internal/servers"
	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
)

// block returns the only block of code of the README in a language, with the
// addresses of s in place of those of the README.
func block(t *testing.T, language string, s *servers.Servers) string {
	t.Helper()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)\n```"+language+"\n(.*?\n)```\n").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) != 1 {
		t.Fatalf("README.md has %d blocks of %s, want 1", len(blocks), language)
	}
	return strings.NewReplacer(
		"127.0.0.1:6379", s.Redis.Options().Addr,
		"127.0.0.1:4222", strings.TrimPrefix(s.NATSURL, "nats://"),
	).Replace(blocks[0][1])
}

// prints fails the test unless the program prints a line that matches. The program
// goes on until the test ends.
func prints(t *testing.T, cmd *exec.Cmd, want string) {
	t.Helper()
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = write.CloseWithError(cmd.Wait()) // nil: the end of its output
	}()
	t.Cleanup(func() {
		_ = read.Close()
		_ = cmd.Process.Kill() // unless it has ended
		<-ended
	})
	var said []string
	lines := bufio.NewScanner(read)
	for lines.Scan() {
		said = append(said, lines.Text())
		if regexp.MustCompile(want).MatchString(lines.Text()) {
			return
		}
	}
	t.Errorf("%v ended (%v), want a line that matches %s; it said\n%s", cmd.Args, lines.Err(), want,
		strings.Join(said, "\n"))
}

func TestReadme(t *testing.T) {
	s := exampleenv.Servers(t, "*=10s,20s")

	t.Run("Go", func(t *testing.T) {
		dir := t.TempDir()
		source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "main")
		if err := os.WriteFile(source, []byte(block(t, "go", s)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := command(t, "..", "go", "build", "-race", "-o", binary, source).CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		prints(t, command(t, dir, binary), `order 42: \{"total":99\}, attempt 1$`)
	})

	t.Run("Node.js", func(t *testing.T) {
		needNode(t)
		dir := installExample(t)
		addClient(t, dir)
		if err := os.WriteFile(filepath.Join(dir, "readme.js"), []byte(block(t, "js", s)), 0o600); err != nil {
			t.Fatal(err)
		}
		prints(t, command(t, dir, "node", "readme.js"), `^order 43: 99, attempt 1$`)
	})

	t.Run("Python", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "cancel_order.py"), []byte(block(t, "python", s)),
			0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Redis.FCall(t.Context(), "timer_set", []string{"shop:order:timeout:44"}, `{"total":99}`, "PX",
			100).Err(); err != nil {
			t.Fatal(err)
		}
		cmd := command(t, dir, exampleenv.Timerd(t), "consume", "shop:order", "--durable", "py", "--", "python3",
			"cancel_order.py")
		cmd.Env = append(os.Environ(), "TIMERD_NATS_URL="+s.NATSURL)
		prints(t, cmd, `^order 44 99$`)
	})
}
