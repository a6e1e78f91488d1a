// Package receiver has the hosts that timerd deliver calls in a torture run; some of them fail. It records each call.
package receiver

import (
	"context"
	crypto "crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv/lab"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// deliverer is the name of the header that identifies a timerd deliver: 1.3 is number 1, started for the third time.
const deliverer = "X-Torture-Deliverer"

// maxBody bounds a call, in bytes.
const maxBody = 1 << 20

// Receiver has all hosts.
type Receiver struct {
	history *history.Writer
	secret  string // signs the calls
	webhook *standardwebhooks.Webhook
	hosts   map[role]*host
	seed    uint64
	calls   atomic.Uint64
	good    atomic.Bool
	ending  context.Context
	end     context.CancelFunc
	serving sync.WaitGroup
}

// host is a host that timerd deliver calls. The proxy in front of it can be broken.
type host struct {
	*Receiver
	role   role
	server http.Server
	proxy  *lab.Proxy
}

// New starts all hosts. The caller closes the Receiver. The seed decides the failures of flaky hosts. report gets the
// faults of a proxy.
func New(w *history.Writer, seed uint64, report func(error)) (*Receiver, error) {
	key := make([]byte, 24)
	_, _ = crypto.Read(key) // never fails
	secret := "whsec_" + base64.StdEncoding.EncodeToString(key)
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, fmt.Errorf("receiver: %w", err)
	}
	r := &Receiver{history: w, secret: secret, webhook: webhook, hosts: map[role]*host{}, seed: seed}
	r.ending, r.end = context.WithCancel(context.Background())
	for _, role := range roles() {
		if err := r.open(role, report); err != nil {
			return nil, fmt.Errorf("receiver: %w", errors.Join(err, r.Close()))
		}
	}
	return r, nil
}

// open starts a host of a role.
func (r *Receiver) open(role role, report func(error)) error {
	var config net.ListenConfig
	l, err := config.Listen(r.ending, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	proxy, err := lab.NewProxy(l.Addr().String(), report)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	h := &host{Receiver: r, role: role, proxy: proxy}
	h.server = http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	r.hosts[role] = h
	r.serving.Go(func() {
		if err := h.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			report(err)
		}
	})
	return nil
}

// Frail is the proxy in front of the host that dies now and then.
func (r *Receiver) Frail() *lab.Proxy { return r.hosts[frail].proxy }

// Recover makes all hosts answer without failures from now on.
func (r *Receiver) Recover() { r.good.Store(true) }

// endTimeout bounds the end of the last calls; no host delays these.
const endTimeout = 10 * time.Second

// Close ends all hosts, and returns once the history has all calls.
func (r *Receiver) Close() error {
	r.end()
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	var errs []error
	for _, h := range r.hosts {
		errs = append(errs, h.server.Shutdown(ctx))
		h.proxy.Close()
	}
	r.serving.Wait()
	return errors.Join(errs...)
}

// URLs returns the URLs of the hosts. Hosts that should get more calls occur several times.
func (r *Receiver) URLs() []string {
	url := func(role role, path string) string { return "http://" + r.hosts[role].proxy.Addr() + path }
	return []string{
		url(steady, history.PathUsual), url(steady, history.PathUsual), url(steady, history.PathUsual),
		url(steady, history.PathGone),
		url(flaky, history.PathUsual), url(flaky, history.PathUsual), url(flaky, history.PathUsual),
		url(frail, history.PathUsual), url(frail, history.PathUsual), url(frail, history.PathUsual),
	}
}

// Steady returns the hosts that always answer; Fixed is one of them.
func (r *Receiver) Steady() []string { return []string{r.hosts[steady].proxy.Addr(), r.Fixed()} }

// Fixed returns the host in the file of endpoints.
func (r *Receiver) Fixed() string { return r.hosts[fixed].proxy.Addr() }

// Endpoints returns the n-th of several files of endpoints for timerd deliver, which also needs the variables of
// Environment. All files call the same receiver for each timer, but by different entries: wider or narrower ones, with
// overlaps, in another order. The bytes of no two files are the same, because a group goes back to a former file only
// through a process with the present file.
func (r *Receiver) Endpoints(n int) string {
	files := [][]string{
		{"*"},
		{"call", "*:call", "*"},
		{"*:call", "call", "*"},
		{"*:call", "brief", "*"},
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# file %d\nendpoints:\n", n)
	entry := func(match, url string) {
		fmt.Fprintf(&text, "- match: '%s:%s'\n  url: '%s'\n  timeout: %v\n  secrets: [env:TORTURE_SECRET]\n  "+
			"allow_private: [127.0.0.1]\n  hosts: [127.0.0.1]\n  ports: any\n  headers: {%s: env:TORTURE_DELIVERER}\n",
			history.HookApp, match, url, timeout, deliverer)
	}
	entry(history.ModuleFixed, "http://"+r.Fixed()+history.PathUsual)
	for _, match := range files[n%len(files)] {
		entry(match, "{data.notify_url}")
	}
	return text.String()
}

// Environment returns the variables for a timerd deliver: its number, and the number of its starts.
func (r *Receiver) Environment(number, start int) []string {
	return []string{"TORTURE_SECRET=" + r.secret, fmt.Sprintf("TORTURE_DELIVERER=%d.%d", number, start)}
}

// ServeHTTP answers a call and records it. An incomplete call is not recorded.
func (h *host) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody))
	if err != nil {
		return
	}
	c := history.Call{At: time.Now().UnixMilli(), Host: h.proxy.Addr(), Path: request.URL.Path}
	if err := h.read(&c, request.Header, body); err != nil {
		c.Fault = err.Error()
	}
	random := rand.New(rand.NewPCG(h.seed, h.calls.Add(1)))
	answer := h.choose(c.Path, random)
	if answer.wait(request.Context(), h.ending) && answer.status != 0 {
		c.Status = answer.status
		answer.write(w)
	}
	c.Answered = time.Now().UnixMilli() + 1
	h.history.Write(history.Record{Call: &c})
	if c.Status == 0 {
		panic(http.ErrAbortHandler) // closes the connection
	}
}

// read reads a call, and verifies it as a user's receiver would.
func (r *Receiver) read(c *history.Call, header http.Header, body []byte) error {
	c.WebhookID = header.Get(standardwebhooks.HeaderWebhookID)
	number, start, _ := strings.Cut(header.Get(deliverer), ".")
	var err error
	if c.Deliverer, err = strconv.Atoi(number); err != nil {
		return fmt.Errorf("the header %s: %w", deliverer, err)
	}
	if c.Start, err = strconv.Atoi(start); err != nil {
		return fmt.Errorf("the header %s: %w", deliverer, err)
	}
	e, err := event.Parse(body)
	if err != nil {
		return err
	}
	c.Key, c.EventID, c.Origin, c.Attempt, c.Payload = e.Key.String(), e.ID, e.FirstID(), e.Attempt,
		history.Digest(string(e.Data))
	if err := r.webhook.Verify(body, header); err != nil {
		return err
	}
	if want := event.WebhookID(e); c.WebhookID != want {
		return fmt.Errorf("the webhook-id is %s, want %s", c.WebhookID, want)
	}
	if c.Path != history.PathUsual && c.Path != history.PathGone {
		return fmt.Errorf("no operation has requested a call of %q", c.Path)
	}
	return nil
}
