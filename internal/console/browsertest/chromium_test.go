package browsertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	// browserStart bounds how long Chromium may take to start, on a cold and busy machine.
	browserStart = time.Minute
	// browserStop is the time for it to end by itself.
	browserStop = 5 * time.Second
)

// hostName is a host that the browser finds on this machine, unlike any other. It trusts it less than 127.0.0.1.
const hostName = "console.test"

// errNoChromium names the package to install.
var errNoChromium = errors.New(`no Chromium in PATH; the console's tests drive a real one. Install it, then run make console-test:
  Debian  scripts/deps.sh chromium
  Fedora  sudo dnf install chromium
  Ubuntu  a chromium that is no snap, or Google Chrome as google-chrome
  macOS   brew install --cask chromium, and have a chromium in PATH`)

// chromium is a running browser without a window.
type chromium struct {
	process *devserver.Process
	dir     string // its profile
	url     string // of its DevTools, by websocket
}

// startChromium starts a browser of its own, with an empty profile.
func startChromium() (*chromium, error) {
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		return nil, errNoChromium
	}
	dir, err := os.MkdirTemp("", "timerd-chromium-")
	if err != nil {
		return nil, err
	}
	b := &chromium{dir: dir}
	if err := b.start(program); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), b.stop())
	}
	return b, nil
}

// start runs the program and waits for it to name the address of its DevTools.
func (b *chromium) start(program string) error {
	said, said2, err := os.Pipe()
	if err != nil {
		return err
	}
	// Root may not use the sandbox. The background networking would ask for hosts that a closed network refuses.
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
		"--disable-extensions",
		"--disable-default-apps", "--mute-audio", "--hide-scrollbars", "--force-color-profile=srgb",
		"--font-render-hinting=none", "--lang=en-US",
		"--host-resolver-rules=MAP "+hostName+" 127.0.0.1,MAP * ~NOTFOUND,EXCLUDE 127.0.0.1",
		"--user-data-dir="+b.dir, "--remote-debugging-port=0", "about:blank")
	cmd.Stderr = said2
	b.process, err = devserver.StartProcess(cmd)
	err = errors.Join(err, said2.Close())
	if err != nil {
		return errors.Join(err, said.Close())
	}
	found, lines := make(chan string, 1), make(chan []string, 1)
	go func() {
		defer said.Close()
		lines <- awaitAddress(said, found)
		_, _ = io.Copy(io.Discard, said)
	}()
	timer := time.NewTimer(browserStart)
	defer timer.Stop()
	select {
	case b.url = <-found:
		return nil
	case all := <-lines:
		return fmt.Errorf("it did not say where its DevTools are:\n%s", all)
	case <-timer.C:
		return fmt.Errorf("it did not say within %v where its DevTools are", browserStart)
	}
}

// awaitAddress reads until the address comes, and returns the lines until then.
func awaitAddress(r io.Reader, found chan<- string) (all []string) {
	address := regexp.MustCompile(`^DevTools listening on (ws://\S+)`)
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if match := address.FindStringSubmatch(lines.Text()); match != nil {
			found <- match[1]
			return all
		}
		all = slices.Concat(all, []string{lines.Text()})
	}
	return all
}

// stop ends the browser and deletes its profile.
func (b *chromium) stop() error {
	if b.process != nil {
		if err := b.process.Stop(browserStop); err != nil {
			return err
		}
	}
	// Processes of its own end a moment after it, and write until then.
	return devserver.Until(context.Background(), browserStop, func() error { return os.RemoveAll(b.dir) })
}
