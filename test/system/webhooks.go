package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/event"
)

// WebhookSecret is the secret of these tests' merchants.
const WebhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// Merchant is a receiver of webhooks.
type Merchant struct {
	*httptest.Server
	T      testing.TB
	Answer atomic.Pointer[http.HandlerFunc]

	Mu    sync.Mutex
	Calls map[string][]event.Event // by webhook-id
	Total int
}

// NewMerchant starts a merchant, which checks signatures and answers by a function.
func NewMerchant(t testing.TB, answer http.HandlerFunc) *Merchant {
	t.Helper()
	webhook, err := standardwebhooks.NewWebhook(WebhookSecret)
	if err != nil {
		t.Fatal(err)
	}
	m := &Merchant{T: t, Calls: map[string][]event.Event{}}
	m.Answer.Store(&answer)
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			return // a process was killed in the middle
		}
		if err := webhook.Verify(body, r.Header); err != nil {
			t.Errorf("webhook: %v", err)
		}
		e, err := event.Parse(body)
		if err != nil {
			t.Errorf("webhook: %v", err)
		}
		m.Mu.Lock()
		id := r.Header.Get("Webhook-Id")
		m.Calls[id] = append(m.Calls[id], e)
		m.Total++
		m.Mu.Unlock()
		(*m.Answer.Load())(w, r)
	}))
	t.Cleanup(m.Close)
	return m
}

// Seen returns the calls by their webhook-ids, and how many there were.
func (m *Merchant) Seen() (byID map[string][]event.Event, total int) {
	m.Mu.Lock()
	defer m.Mu.Unlock()
	byID = map[string][]event.Event{}
	for id, all := range m.Calls {
		byID[id] = append([]event.Event{}, all...)
	}
	return byID, m.Total
}

// Webhooks writes a file of endpoints, each "match url", and returns its name.
func Webhooks(t testing.TB, endpoints ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "webhooks.yaml")
	WriteWebhooks(t, file, endpoints...)
	return file
}

// WriteWebhooks writes a file as Webhooks does.
func WriteWebhooks(t testing.TB, file string, endpoints ...string) {
	t.Helper()
	var text strings.Builder
	text.WriteString("endpoints:\n")
	for _, endpoint := range endpoints {
		match, url, _ := strings.Cut(endpoint, " ")
		fmt.Fprintf(&text, "- match: '%s'\n  url: '%s'\n  secrets: [env:WEBHOOK_SECRET]\n  allow_private: "+
			"[127.0.0.0/8]\n  ports: any\n", match, url)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Deliverer starts timerd deliver and waits until it is ready.
func (s *System) Deliverer(file string, settings ...string) *Daemon {
	s.T.Helper()
	p := s.LaunchCommand([]string{"deliver", "--config", file}, append(settings, "WEBHOOK_SECRET="+WebhookSecret)...)
	p.AwaitReady(true)
	return p
}
