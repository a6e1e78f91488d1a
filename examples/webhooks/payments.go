package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/devserver"
)

// namespace is the timers' namespace: pay:order:callback:<order>.
const namespace = "pay:order:callback"

// deliverGrace bounds the end of timerd deliver.
const deliverGrace = 20 * time.Second

// payment is the payload of a timer.
type payment struct {
	Order     string    `json:"order"`
	Amount    int64     `json:"amount"` // cents
	Currency  string    `json:"currency"`
	PaidAt    time.Time `json:"paid_at"`
	NotifyURL string    `json:"notify_url"` // the merchant's URL
}

func (p payment) key() string { return namespace + ":" + p.Order }

// setCallbacks sets the timer of each payment's first callback.
func setCallbacks(ctx context.Context, timers *client.Timers, payments []payment, after time.Duration) error {
	settings := make([]client.Setting, len(payments))
	for i, p := range payments {
		payload, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("payment of order %s: %w", p.Order, err)
		}
		settings[i] = client.Setting{Key: p.key(), Payload: payload, When: client.After(after)}
	}
	_, err := timers.SetMany(ctx, settings)
	return err
}

// endpoints is the file that timerd deliver reads.
func endpoints(timeout time.Duration) string {
	return fmt.Sprintf(`endpoints:
  - match: %s
    url: "{data.notify_url}"
    secrets: [env:WEBHOOK_SECRET]
    timeout: %v
    allow_private: [127.0.0.1] # the merchants of this example live here,
    ports: any                 # on ports of their own
`, namespace, timeout)
}

// deliverer is a running timerd deliver.
type deliverer struct {
	process *devserver.Process
	dir     string
}

// startDeliverer starts timerd deliver. It ends with this process in any case.
func startDeliverer(binary, natsURL, file string, stderr *os.File) (*deliverer, error) {
	dir, err := os.MkdirTemp("", "timerd-webhooks-")
	if err != nil {
		return nil, err
	}
	d := &deliverer{dir: dir}
	name := filepath.Join(dir, "webhooks.yaml")
	if err := os.WriteFile(name, []byte(file), 0o600); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := exec.Command(binary, "deliver", "--config", name) //nolint:noctx // stop ends it
	cmd.Env = append(os.Environ(), "TIMERD_NATS_URL="+natsURL, "TIMERD_HTTP_ADDR=off", "TIMERD_LOG_LEVEL=error",
		"WEBHOOK_SECRET="+merchantSecret)
	cmd.Stderr = stderr
	if d.process, err = devserver.StartProcess(cmd); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w; `make build` makes bin/timerd", binary, err),
			os.RemoveAll(dir))
	}
	return d, nil
}

func (d *deliverer) stop() error {
	return errors.Join(d.process.Stop(deliverGrace), os.RemoveAll(d.dir))
}
