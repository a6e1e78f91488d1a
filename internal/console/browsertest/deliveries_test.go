package browsertest

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/devserver"
)

// merchant is a receiver of webhooks that fails at first.
type merchant struct {
	*httptest.Server

	mu  sync.Mutex
	ids []string // the webhook-id of each call
}

func newMerchant(t *testing.T) *merchant {
	t.Helper()
	m := &merchant{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ids = append(m.ids, r.Header.Get("Webhook-Id"))
		if len(m.ids) == 1 {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, `<script>alert("502")</script>`) // whoever asked is gone
		}
	}))
	t.Cleanup(m.Close)
	return m
}

// calls returns the webhook-id of each call.
func (m *merchant) calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.ids)
}

// deliver runs timerd deliver until the test ends.
func (s *system) deliver(match string, to *merchant) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "webhooks.yaml")
	text := fmt.Sprintf("group: %s\nendpoints:\n- match: '%s'\n  url: '%s'\n  secrets: [env:WEBHOOK_SECRET]\n  "+
		"allow_private: [127.0.0.0/8]\n",
		strings.ReplaceAll(match, ":", "-"), match, to.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(os.Getenv(timerdVariable), "deliver", "--config", file)
	cmd.Env = []string{"WEBHOOK_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "TIMERD_HTTP_ADDR=" + address(s.t),
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.t.TempDir()}
	for _, setting := range s.env {
		if strings.HasPrefix(setting, "TIMERD_NATS_URL=") {
			cmd.Env = append(cmd.Env, setting)
		}
	}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	process, err := devserver.StartProcess(cmd)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := process.Stop(stopTime); err != nil || process.ExitCode() != 0 {
			s.t.Errorf("timerd deliver ended with exit code %d, %v", process.ExitCode(), err)
		}
	})
}

// The page of a timer shows the fate of its webhook, and sends it again: the receiver gets it under the same
// webhook-id.
func TestDeliveries(t *testing.T) {
	t.Parallel()
	script := axe(t)
	eachUser(t, func(s *system, b *tab, app string) {
		m := newMerchant(b.t)
		s.deliver(app+":order", m)
		key := app + ":order:callback:42"
		s.set(key, `{"order":42}`, 50*time.Millisecond)
		shows := func(what ...string) {
			b.t.Helper()
			b.eventually(func() error {
				b.open("/timers/" + key)
				for _, text := range what {
					if err := b.shows("section table", text); err != nil {
						return err
					}
				}
				return nil
			}, "the deliveries")
		}
		shows("delivered", "200", "retry", `502 Bad Gateway: <script>alert("502")</script>`,
			strings.TrimPrefix(m.URL, "http://"))
		b.click("summary", "more")
		b.sees("details[open]", "event id")
		b.harmless("a page with deliveries")
		if script != "" && !b.look.scriptless {
			b.accessible(script)
		}
		b.follow("tbody button", "Send again…")
		b.sees("main", "All consumers of the subject get it, not only the webhook")
		b.confirm("Send again", "1 event")
		b.done("Done. 1 sent again")
		b.eventually(func() error {
			if calls := m.calls(); len(calls) != 3 {
				return fmt.Errorf("%d calls, want 3", len(calls))
			}
			return nil
		}, "the call of the event sent again")
		if calls := m.calls(); calls[0] == "" || len(slices.Compact(calls)) != 1 {
			b.t.Errorf("webhook-ids %q, want the same", m.calls())
		}
		s.collect(app+":order:callback", 3)
		b.follow("main a.button", "Go back")
		shows("delivered", "200")
		if n := must[int](b, `() => document.querySelectorAll("section table tbody tr").length`); n != 3 {
			b.t.Errorf("%d deliveries are shown, want 3", n)
		}
	}, "TIMERD_RETRY=*=300ms,300ms")
}
