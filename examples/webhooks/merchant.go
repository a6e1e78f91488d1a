package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// reaction is a merchant's reaction to a call.
type reaction string

// The reactions.
const (
	accepts  reaction = "accepts"  // 200
	fails    reaction = "fails"    // 500
	hangs    reaction = "hangs"    // no answer
	throttle reaction = "throttle" // 429, Retry-After: 1
	busy     reaction = "busy"     // 503, Retry-After: 1
	gone     reaction = "gone"     // 410
)

// pauseAsked is the Retry-After of throttle and busy.
const pauseAsked = time.Second

// maxBody limits the bytes of a call that a merchant reads.
const maxBody = 64 << 10

const merchantSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" //nolint:gosec // of this process only

// merchants is an HTTP server that plays the merchants. Each has a URL that ends
// with its name.
type merchants struct {
	// reactions returns the answers to the calls for an order, in turn; the last one repeats.
	reactions func(merchant, order string) []reaction

	webhook *standardwebhooks.Webhook
	server  *http.Server
	base    string
	ended   chan error

	mu     sync.Mutex
	calls  map[string][]reaction // by order
	forged int                   // calls without a valid signature
}

// openMerchants starts the server on a free port of 127.0.0.1.
func openMerchants(reactions func(merchant, order string) []reaction) (*merchants, error) {
	webhook, err := standardwebhooks.NewWebhook(merchantSecret)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	m := &merchants{
		reactions: reactions,
		webhook:   webhook,
		base:      "http://" + l.Addr().String() + "/",
		ended:     make(chan error, 1),
		calls:     make(map[string][]reaction),
	}
	m.server = &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go func() { m.ended <- m.server.Serve(l) }()
	return m, nil
}

// close ends the server and every call.
func (m *merchants) close() error {
	err := m.server.Close()
	if ended := <-m.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}

// url returns where a merchant wants to be called.
func (m *merchants) url(merchant string) string { return m.base + merchant }

// ServeHTTP reacts to a call.
func (m *merchants) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := m.webhook.Verify(body, r.Header); err != nil {
		m.mu.Lock()
		m.forged++
		m.mu.Unlock()
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	var event struct {
		Data payment `json:"data"`
	}
	if err := json.Unmarshal(body, &event); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	react(w, r, m.reaction(path.Base(r.URL.Path), event.Data.Order))
}

// reaction returns how to react to a call, and writes it down.
func (m *merchants) reaction(merchant, order string) reaction {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.reactions(merchant, order)
	next := all[min(len(m.calls[order]), len(all)-1)]
	m.calls[order] = append(m.calls[order], next)
	return next
}

func react(w http.ResponseWriter, r *http.Request, how reaction) {
	status := http.StatusOK
	switch how {
	case hangs:
		<-r.Context().Done()
		return
	case fails:
		status = http.StatusInternalServerError
	case gone:
		status = http.StatusGone
	case throttle:
		status = http.StatusTooManyRequests
	case busy:
		status = http.StatusServiceUnavailable
	}
	if how == throttle || how == busy {
		w.Header().Set("Retry-After", fmt.Sprint(pauseAsked.Seconds()))
	}
	w.WriteHeader(status)
}
