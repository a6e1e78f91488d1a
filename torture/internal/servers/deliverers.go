package servers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/timerd-io/timerd/internal/testenv/lab"
)

// deliverers is the number of timerd deliver processes. There are several, because another process repeats the work of
// a dead one.
const deliverers = 2

// Deliverer is one timerd deliver, started again and again with the same configuration, with its proxy to NATS.
type Deliverer struct {
	*Timerd
	ToNATS *lab.Proxy

	env    []string // for each start
	differ func(start int) []string
	starts int
}

// Start starts the process.
func (d *Deliverer) Start() error {
	d.starts++
	d.Timerd.env = append(slices.Clone(d.env), d.differ(d.starts)...)
	return d.Timerd.Start()
}

// StartDeliverers starts some timerd deliver processes with a file of endpoints, and returns once they are ready.
// differ returns further variables of one process for its nth start, from 1 on. report gets the faults of a proxy.
func (s *System) StartDeliverers(ctx context.Context, endpoints string, differ func(number, start int) []string,
	report func(error)) error {
	file := s.endpointsFile()
	if err := s.WriteEndpoints(endpoints); err != nil {
		return err
	}
	for i := range deliverers {
		proxy, err := lab.NewProxy(s.NATS.Addr(), report)
		if err != nil {
			return err
		}
		t, err := newTimerd(s.program, filepath.Join(s.dir, fmt.Sprintf("timerd-deliver-%d.log", i)),
			map[string]string{"TIMERD_NATS_URL": "nats://" + proxy.Addr()})
		if err != nil {
			proxy.Close()
			return err
		}
		t.args = []string{"deliver", "--config", file}
		d := &Deliverer{Timerd: t, ToNATS: proxy, env: t.env,
			differ: func(start int) []string { return differ(i, start) }}
		s.Deliverers = append(s.Deliverers, d)
		if err := d.Start(); err != nil {
			return err
		}
	}
	return s.AwaitDeliverers(ctx, startTimeout)
}

func (s *System) endpointsFile() string { return filepath.Join(s.dir, "endpoints.yaml") }

// WriteEndpoints writes the file of endpoints. Each process keeps the file that it has read, until Reload or its next
// start.
func (s *System) WriteEndpoints(text string) error {
	return os.WriteFile(s.endpointsFile(), []byte(text), 0o600)
}

// Reload makes the process read its file again.
func (d *Deliverer) Reload() error { return d.process.Load().Signal(syscall.SIGHUP) }

// AwaitDeliverers waits until all timerd deliver processes are ready. Its error names a process that is not ready.
func (s *System) AwaitDeliverers(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for i, d := range s.Deliverers {
		if err := d.AwaitReady(ctx); err != nil {
			return fmt.Errorf("timerd deliver %d: %w", i, err)
		}
	}
	return nil
}
