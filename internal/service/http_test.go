package service

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
)

// The HTTP server reports health, readiness with its faults, and metrics, and ends with its context.
func TestHTTP(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	broken.Store(true)
	var logs testenv.Output
	ready := &readiness{log: logs.Logger()}
	ready.add("redis", func(context.Context) error { return nil })
	ready.add("jetstream", func(context.Context) error {
		if broken.Load() {
			return errors.Join(errors.New("no stream"), errors.New("no leader"))
		}
		return nil
	})
	registry := newRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "timerd_answer"},
		func() float64 { return 42 }))
	observeReadiness(registry, ready)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveHTTP(ctx, l, newHTTPHandler(ready, registry), logs.Logger()) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://" + l.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}

	if status, body := get("/readyz"); status != 503 || !strings.Contains(body, "redis: failed: not checked yet") {
		t.Errorf("/readyz before the first check: %d %s", status, body)
	}
	go ready.run(ctx)
	logs.Wait(t, time.Minute, "not ready")
	if status, body := get("/readyz"); status != 503 || body != "redis: ok\njetstream: failed: no stream; no leader\n" {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if _, body := get("/metrics"); !strings.Contains(body, `timerd_ready{check="jetstream"} 0`) ||
		!strings.Contains(body, `timerd_ready{check="redis"} 1`) {
		t.Errorf("/metrics: %s", body)
	}
	broken.Store(false)
	logs.Wait(t, time.Minute, "ready again")
	if status, body := get("/readyz"); status != 200 || body != "redis: ok\njetstream: ok\n" {
		t.Errorf("/readyz: %d %s", status, body)
	}
	if status, body := get("/healthz"); status != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %s", status, body)
	}
	if status, body := get("/metrics"); status != 200 || !strings.Contains(body, "timerd_answer 42") {
		t.Errorf("/metrics: %d %s", status, body)
	}
	if status, _ := get("/debug/pprof/"); status != 404 {
		t.Errorf("/debug/pprof/: %d", status)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A check that hangs counts as failed, and each change is logged once.
func TestReadinessOverTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logs testenv.Output
		ready := &readiness{log: logs.Logger()}
		hang := make(chan struct{})
		var failing atomic.Bool
		ready.add("hangs", func(context.Context) error { <-hang; return nil })
		ready.add("fails", func(context.Context) error {
			if failing.Load() {
				return errors.New("broken")
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		go ready.run(ctx)

		time.Sleep(checkStale + time.Second)
		all := ready.state()
		if all[0].Level != diag.Fail || !strings.Contains(all[0].Text, "no result of the check for") ||
			all[1].Level != diag.OK {
			t.Errorf("while a check hangs: %v", all)
		}
		if logs.String() != "" {
			t.Errorf("logged at the start:\n%s", &logs)
		}
		close(hang)
		synctest.Wait()
		if all := ready.state(); all.Failed() {
			t.Errorf("after it answered: %v", all)
		}
		failing.Store(true)
		time.Sleep(10 * checkInterval)
		failing.Store(false)
		time.Sleep(10 * checkInterval)
		cancel()
		synctest.Wait()
		if n := strings.Count(logs.String(), "\n"); n != 2 {
			t.Errorf("%d log lines, want one for the failure and one for the recovery:\n%s", n, &logs)
		}
	})
}
