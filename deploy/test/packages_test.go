package deploytest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

// The Debian package, unpacked, is complete: its scripts make the user, and its timerd fires a timer by its units and
// settings.
func TestPackages(t *testing.T) {
	dir, root, control := t.TempDir(), t.TempDir(), t.TempDir()
	made := run(t, exec.Command("../../scripts/dist.sh", dir, "v1.2.3", "linux/"+runtime.GOARCH))
	for _, suffix := range []string{".deb", ".rpm"} {
		if !strings.Contains(read(t, filepath.Join(dir, "checksums.txt")), suffix+"\n") {
			t.Errorf("no %s with a checksum; scripts/dist.sh made\n%s", suffix, made)
		}
	}
	deb := filepath.Join(dir, "timerd_1.2.3-1_"+runtime.GOARCH+".deb")
	run(t, exec.Command("dpkg-deb", "--extract", deb, root))
	run(t, exec.Command("dpkg-deb", "--control", deb, control))
	t.Run("files", func(t *testing.T) { checkFiles(t, root, control) })
	t.Run("scripts", func(t *testing.T) { checkScripts(t, root, control) })
	t.Run("start", func(t *testing.T) { checkStart(t, root) })
}

// checkFiles expects the files beside the program, and a manual page of this version for each command.
func checkFiles(t *testing.T, root, control string) {
	for _, name := range []string{
		"usr/share/bash-completion/completions/timerd", "usr/share/fish/vendor_completions.d/timerd.fish",
		"usr/share/zsh/vendor-completions/_timerd", "usr/share/doc/timerd/copyright", "usr/share/doc/timerd/redis.conf",
		"usr/share/doc/timerd/changelog.gz", "usr/share/doc/timerd/changelog.Debian.gz",
	} {
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		}
	}
	if got := read(t, filepath.Join(control, "conffiles")); got != "/etc/timerd/timerd.env\n" {
		t.Errorf("kept when the package is upgraded: %q", got)
	}
	for name, want := range map[string]os.FileMode{"etc/timerd/timerd.env": 0o600, "etc/timerd/consume": 0o700} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil {
			t.Error(err)
		} else if info.Mode().Perm() != want {
			t.Errorf("%s, for passwords, has the mode %v", name, info.Mode())
		}
	}
	for _, page := range []string{"timerd", "timerd-serve", "timerd-consume", "timerd-dead-replay"} {
		packed, err := gzip.NewReader(strings.NewReader(
			read(t, filepath.Join(root, "usr", "share", "man", "man1", page+".1.gz"))))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(packed); err != nil || !bytes.Contains(text, []byte("timerd v1.2.3")) {
			t.Errorf("the manual page %s does not name its version: %v", page, err)
		}
	}
}

// checkScripts runs the scripts of the package as dpkg does for a directory that is no running system.
func checkScripts(t *testing.T, root, control string) {
	for _, script := range [][]string{{"postinst", "configure"}, {"prerm", "upgrade", "1.2.4"}, {"prerm", "remove"},
		{"postrm", "remove"}} {
		cmd := exec.Command(filepath.Join(control, script[0]), script[1:]...)
		cmd.Env = append(os.Environ(), "DPKG_ROOT="+root)
		run(t, cmd)
	}
	if users := read(t, filepath.Join(root, "etc", "passwd")); !strings.HasPrefix(users, "timerd:") {
		t.Errorf("no user timerd in\n%s", users)
	}
}

// checkStart starts timerd and a handler by the command lines of their units, with the settings of timerd.env
// uncommented, and lets a timer fire.
func checkStart(t *testing.T, root string) {
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	settings := strings.NewReplacer("#TIMERD_NATS_URL=embedded", "", "#TIMERD", "TIMERD", "127.0.0.1:6379",
		testenv.Redis(t).Addr(), "127.0.0.1:4222", testenv.NATS(t).Addr()).Replace(
		read(t, filepath.Join(root, "etc", "timerd", "timerd.env")))
	env := append(regexp.MustCompile(`(?m)^\w+=.*`).FindAllString(settings, -1),
		"TIMERD_HTTP_ADDR="+devserver.Address(port), "PATH="+os.Getenv("PATH"))
	if len(env) != 5 {
		t.Errorf("timerd.env has the settings %q", env[:len(env)-2])
	}
	command := func(args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(root, "usr", "bin", "timerd"), args...)
		cmd.Env = slices.Clone(env)
		return cmd
	}
	// started starts a unit's command, with systemd's variables replaced, and stops it at the end.
	started := func(name string, variables ...string) *testenv.Output {
		line := regexp.MustCompile(`(?m)^ExecStart=timerd (.*)`).FindStringSubmatch(
			read(t, filepath.Join(root, "usr", "lib", "systemd", "system", name)))
		if line == nil {
			t.Fatalf("%s starts another program", name)
		}
		cmd, out := command(strings.Fields(strings.NewReplacer(variables...).Replace(line[1]))...), &testenv.Output{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil || t.Failed() {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		})
		return out
	}

	if got := run(t, command("version")); !strings.Contains(got, "v1.2.3") {
		t.Errorf("version: %s", got)
	}
	started("timerd.service")
	testenv.Eventually(t, time.Minute, func() error { return command("health").Run() }, "timerd to be ready")
	handler := started("timerd-consume@.service", "$OPTIONS", "--durable cancel-order",
		"$NAMESPACE", "shop:order:timeout", "$COMMAND", "sh ../../examples/shell/consume.sh")
	run(t, command("set", "shop:order:timeout:1", "100ms", "one"))
	handler.Wait(t, time.Minute, "order 1 is cancelled")
}
