package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

func TestHealth(t *testing.T) {
	testenv.NoLeaks(t)
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte("redis: does not answer\njetstream: ok\n"))
	}))
	defer server.Close()
	addr := strings.TrimPrefix(server.URL, "http://")
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{addr, ":" + port, "0.0.0.0:" + port} {
		// Faults elsewhere are no fault here.
		testenv.SetVariables(t, map[string]string{"TIMERD_HTTP_ADDR": setting, "TIMERD_LEASE": "soon"})
		if out := ok(t, "health"); out != "ready\n" {
			t.Errorf("health at %s: %s", setting, out)
		}
	}
	testenv.SetVariables(t, nil)
	if out := ok(t, "health", addr); out != "ready\n" {
		t.Errorf("health of an address: %s", out)
	}
	status = http.StatusServiceUnavailable
	if code, out, errs := timerd(t, "", "health", addr); code != exitFailed || out != "" ||
		!strings.Contains(errs, addr+" is not ready, 503 Service Unavailable\nredis: does not answer\n") {
		t.Errorf("health of a timerd that is not ready: %d %s%s", code, out, errs)
	}
	server.Close()
	if code, _, errs := timerd(t, "", "health", addr); code != exitFailed ||
		!strings.Contains(errs, "ask "+addr+" whether it is ready: ") {
		t.Errorf("health of nobody: %d %s", code, errs)
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_HTTP_ADDR": "off"})
	if code, _, errs := timerd(t, "", "health"); code != exitFailed ||
		!strings.Contains(errs, "TIMERD_HTTP_ADDR is off") {
		t.Errorf("health without an address: %d %s", code, errs)
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_HTTP_ADDR": "nowhere"})
	if code, _, errs := timerd(t, "", "health"); code != exitUsage || !strings.Contains(errs, "TIMERD_HTTP_ADDR") {
		t.Errorf("health with a bad address: %d %s", code, errs)
	}
}
