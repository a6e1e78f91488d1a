package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

// startDelivery runs timerd deliver, as the environment has it, until the test ends. It returns the address of its HTTP
// server.
func startDelivery(t *testing.T, log *testenv.Output) (addr string) {
	t.Helper()
	c, err := config.Read(config.SectionNATS | config.SectionDeliver)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		done <- Delivery{Config: c, Calls: 8, Logger: log.Logger(), Load: func() (*deliver.Config, error) {
			endpoints, faults := deliver.Parse([]byte("endpoints: [{match: shop, url: 'https://shop.example/'}]"), nil)
			if len(faults) > 0 {
				return nil, fmt.Errorf("%v", faults)
			}
			return endpoints, nil
		}}.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return c.Service.HTTPAddr
}

// Each obstacle of timerd deliver is reported by its check, with the address and the fix, and dependent checks name
// that one.
func TestDeliverTellsWhatHindersIt(t *testing.T) {
	var options *server.Options
	broker := testenv.NATS(t, func(o *server.Options) { options = o })
	js := broker.JetStream()
	if err := streams.Ensure(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	var log testenv.Output
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": "nats://u:s3cr3t@" + broker.Addr(),
		"TIMERD_HTTP_ADDR": testenv.FreeAddr(t)})
	addr := startDelivery(t, &log)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	says := func(status int, body string) {
		t.Helper()
		want := regexp.MustCompile("^" + body + "$")
		testenv.Eventually(t, time.Minute, func() error {
			resp, err := client.Get("http://" + addr + "/readyz")
			if err != nil {
				return err
			}
			text, err := io.ReadAll(resp.Body)
			if err = errors.Join(err, resp.Body.Close()); err == nil &&
				(resp.StatusCode != status || !want.Match(text)) {
				err = fmt.Errorf("/readyz: %d %s", resp.StatusCode, text)
			}
			return err
		}, fmt.Sprintf("/readyz to be %d with %q", status, body))
	}
	const well = "jetstream: ok\nlog of deliveries: ok\nendpoints: ok\n"
	// it knows a bit later
	const waits = "log of deliveries: failed: it waits for jetstream\nendpoints: (ok|failed: it waits for jetstream)\n"
	says(http.StatusOK, well)

	broker.Stop()
	says(http.StatusServiceUnavailable,
		"jetstream: failed: NATS at nats://xxxxx@"+broker.Addr()+
			" is away; to fix it: bring the NATS server back: .*\n"+waits)
	broker.Start()
	says(http.StatusOK, well)

	options.JetStream = false
	broker.Restart()
	says(http.StatusServiceUnavailable,
		"jetstream: failed: NATS server: it runs without JetStream; to fix it: add a jetstream block .*\n"+waits)
	options.JetStream = true
	broker.Restart()
	says(http.StatusOK, well)

	if err := js.DeleteStream(t.Context(), "TIMERS_DELIVERY"); err != nil {
		t.Fatal(err)
	}
	says(http.StatusServiceUnavailable,
		"jetstream: ok\nlog of deliveries: failed: there is no stream TIMERS_DELIVERY; to fix it: the next delivery "+
			"makes it.*\nendpoints: ok\n")
	if err := streams.EnsureDelivery(t.Context(), js, streams.Config{}); err != nil {
		t.Fatal(err)
	}
	says(http.StatusOK, well)

	if err := js.DeleteStream(t.Context(), "TIMERS"); err != nil {
		t.Fatal(err)
	}
	says(http.StatusServiceUnavailable,
		"jetstream: failed: there is no stream TIMERS; to fix it: start timerd serve.*\nlog of deliveries: "+
			"ok\nendpoints: failed: it waits for jetstream\n")
}

// The proxies of the environment are logged, without their passwords.
func TestProxiesAreLogged(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ proxy, want string }{
		{"", ""},
		{"http://proxy.example:3128", "http://proxy.example:3128"},
		{"http://user:s3cr3t@proxy.example:3128", "http://user:xxxxx@proxy.example:3128"},
		{"http://%", "one with a malformed URL"},
	} {
		got := proxyOf("https", func(q *http.Request) (*url.URL, error) {
			if test.proxy == "" || q.URL.Scheme != "https" {
				return nil, nil
			}
			return url.Parse(test.proxy)
		})
		if got != test.want {
			t.Errorf("%s: told as %q, want %q", test.proxy, got, test.want)
		}
	}
}
