package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// The console runs without a timerd, begins while NATS is away, says so, and goes on once it is back.
func TestConsoleAlone(t *testing.T) {
	testenv.NoLeaks(t)
	proxy := testenv.NewProxy(t, testenv.NATS(t).Addr())
	proxy.Cut()
	server := startRedis(t)
	addr := testenv.FreeAddr(t)
	testenv.SetVariables(t, map[string]string{
		"TIMERD_REDIS_URL": server.URL(0), "TIMERD_NATS_URL": "nats://" + proxy.Addr(), "TIMERD_CONSOLE_ADDR": addr,
	})
	ok(t, "set", "shop:order:timeout:42", "1h", "the payload")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, errs testenv.Output
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, []string{"console"}, strings.NewReader(""), &out, &errs) }()
	shows := func(path string, want string, there bool) func() error {
		return func() error {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
			if err != nil {
				return err
			}
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			page, err := io.ReadAll(answer.Body)
			if err == nil && (answer.StatusCode != http.StatusOK || strings.Contains(string(page), want) != there) {
				err = fmt.Errorf("%s: %s, want %q there: %t\n%s", path, answer.Status, want, there, page)
			}
			return err
		}
	}
	defer http.DefaultClient.CloseIdleConnections()
	testenv.Eventually(t, patience, shows("/timers", "shop:order:timeout:42", true), "the timers without NATS")
	away := "NATS at nats://" + proxy.Addr() + " is away"
	testenv.Eventually(t, patience, shows("/", away, true), "the overview to say that NATS is away")
	proxy.Heal()
	testenv.Eventually(t, patience, shows("/", away, false), "the overview with NATS")
	cancel()
	if code := <-ended; code != exitOK || out.String() != "" {
		t.Errorf("exit code %d\n%s%s", code, &out, &errs)
	}
	t.Setenv("TIMERD_CONSOLE_ADDR", "off")
	if code, _, said := timerd(t, "", "console"); code != exitUsage || !strings.Contains(said, "TIMERD_CONSOLE_ADDR") {
		t.Errorf("without an address: exit code %d %s", code, said)
	}
}
