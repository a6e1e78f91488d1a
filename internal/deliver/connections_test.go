package deliver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// Idle connections of one endpoint give way to the calls of another where the process has no more descriptors.
func TestIdleConnectionsGiveWay(t *testing.T) { //nolint:paralleltest // it takes the descriptors of the process
	const calls = 16
	var together sync.WaitGroup
	together.Add(calls)
	host := func(answer http.HandlerFunc) target {
		server := httptest.NewServer(answer)
		t.Cleanup(server.Close)
		u, err := url.Parse(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		return target{url: u, host: u.Host}
	}
	crowd, other := host(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		together.Done()
		together.Wait()
	}), host(func(http.ResponseWriter, *http.Request) {})
	endpoint := func() *Endpoint {
		return &Endpoint{Body: BodyEvent, Timeout: time.Minute, Concurrency: calls,
			AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
	}
	first, second := endpoint(), endpoint()
	d := &Deliverer{Proxy: func(*http.Request) (*url.URL, error) { return nil, nil }}
	routes := d.route(&group{config: &Config{Endpoints: []*Endpoint{first, second}}}, nil)
	t.Cleanup(routes.close)
	ev := event.Event{ID: "1", Key: keys.Key{App: "pay", Module: "a", Type: "b", ID: "1"}}
	var running sync.WaitGroup
	for range calls {
		running.Go(func() {
			if a := d.call(t.Context(), t.Context(), routes, first, crowd, ev); a.verdict != delivered {
				t.Errorf("%+v", a)
			}
		})
	}
	running.Wait()

	takeDescriptors(t)
	if a := d.call(t.Context(), t.Context(), routes, second, other, ev); a.verdict != returned ||
		!strings.Contains(a.text, "too many open files") {
		t.Errorf("without descriptors: %+v", a)
	}
	testenv.Eventually(t, time.Minute, func() error { // connections are closed a moment later
		if a := d.call(t.Context(), t.Context(), routes, second, other, ev); a.verdict != delivered {
			return fmt.Errorf("%+v", a)
		}
		return nil
	}, "idle connections to give way")
}

// takeDescriptors leaves the process no descriptor, until the test ends.
func takeDescriptors(t *testing.T) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = 1024
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	})
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
	}
}

// However many calls find no descriptor, idle connections are closed only once in a while: each time all must be made
// again.
func TestIdleConnectionsAreGivenUpRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r relief
		var times atomic.Int64
		const calls = 100
		for range 3 {
			for range calls {
				go r.give(func() { times.Add(1) })
			}
			synctest.Wait()
			time.Sleep(reliefEvery)
		}
		if n := times.Load(); n != 3 {
			t.Errorf("%d calls in three moments gave up idle connections %d times, want 3", 3*calls, n)
		}
	})
}

// The endpoints of a file share the limit of kept connections.
func TestIdleConnectionsAreShared(t *testing.T) {
	t.Parallel()
	for endpoints, want := range map[int]int{1: 10240, 4: 2560, 1000: 64} {
		got := newTransport(&Endpoint{}, endpoints, http.ProxyFromEnvironment).direct.usual.MaxIdleConns
		if got != want {
			t.Errorf("one of %d keeps %d, want %d", endpoints, got, want)
		}
	}
}
