package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

const (
	devReady = 30 * time.Second // how long the servers may take to start
	devPoll  = 20 * time.Millisecond
	devGrace = 20 * time.Second // timerd itself ends within 10 s
	// devTries limits the starts: another process may take a free port first.
	devTries = 3
)

// errEnded means that timerd dev ended before it was ready.
var errEnded = errors.New("timerd dev ended at its start")

// dev is a running `timerd dev`.
type dev struct {
	redisURL, natsURL string

	httpAddr string
	process  *devserver.Process
	said     bytes.Buffer // to be read once the process has ended
}

// startDev runs `timerd dev` on free ports and returns once it is ready. It ends with this process in any case.
func startDev(ctx context.Context, binary, retry string) (*dev, error) {
	var err error
	for range devTries {
		var d *dev
		if d, err = tryDev(ctx, binary, retry); !errors.Is(err, errEnded) {
			return d, err
		}
	}
	return nil, err
}

func tryDev(ctx context.Context, binary, retry string) (*dev, error) {
	var free [3]int
	for i := range free {
		var err error
		if free[i], err = devserver.FreePort(); err != nil {
			return nil, err
		}
	}
	d := &dev{
		redisURL: "redis://" + devserver.Address(free[0]) + "/0",
		natsURL:  "nats://" + devserver.Address(free[1]),
		httpAddr: devserver.Address(free[2]),
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, "dev", "--no-samples", // stop ends it
		"--redis-port", strconv.Itoa(free[0]), "--nats-port", strconv.Itoa(free[1]), "--http-addr", d.httpAddr)
	cmd.Env = append(withoutTimerd(os.Environ()), "TIMERD_RETRY="+retry)
	cmd.Stderr = &d.said
	var err error
	if d.process, err = devserver.StartProcess(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w; `make build` makes bin/timerd", binary, err)
	}
	if err := d.await(ctx); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

// await waits until timerd is ready.
func (d *dev) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, devReady, fmt.Errorf("timerd dev was not ready within %v", devReady))
	defer cancel()
	poll := time.NewTicker(devPoll)
	defer poll.Stop()
	for !d.ready(ctx) {
		select {
		case <-d.process.Done():
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
	return nil
}

func (d *dev) ready(ctx context.Context) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.httpAddr+"/readyz", http.NoBody)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	return response.Body.Close() == nil && response.StatusCode == http.StatusOK
}

// stop ends timerd and with it its Redis and its NATS. It is an error too if they had ended before.
func (d *dev) stop() error {
	http.DefaultClient.CloseIdleConnections()
	if err := d.process.Stop(devGrace); err != nil {
		return fmt.Errorf("end timerd dev: %w", err)
	}
	if code := d.process.ExitCode(); code != 0 {
		return fmt.Errorf("timerd dev ended with exit code %d\n%s", code, bytes.TrimSpace(d.said.Bytes()))
	}
	return nil
}

// withoutTimerd returns an environment without the variables that would configure
// timerd otherwise than an example expects.
func withoutTimerd(environment []string) []string {
	var kept []string
	for _, variable := range environment {
		if !strings.HasPrefix(variable, "TIMERD_") {
			kept = append(kept, variable)
		}
	}
	return kept
}
