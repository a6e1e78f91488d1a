package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Webhooks are called on the way, and an advance waits for their answers.
func TestAdvanceWebhooks(t *testing.T) {
	var calls atomic.Int64
	merchant := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) < 3 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer merchant.Close()
	file := t.TempDir() + "/webhooks.yaml"
	text := "group: tests\nendpoints:\n- match: pay\n  url: " + merchant.URL + "\n  allow_private: [127.0.0.0/8]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	v := startVirtual(t, "pay=1h,24h", "--deliver", file, "--console-addr", "127.0.0.1:0")
	t0 := v.now()
	v.do("SET", "pay:order:callback:1", "{}", "EX", 3600)
	v.fires(72*time.Hour, t0, "pay:order:callback:1 1 +1h0m0s", "pay:order:callback:1 2 +2h0m0s",
		"pay:order:callback:1 3 +26h0m0s")
	if n := calls.Load(); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
	var console struct{ Hosts []struct{ Calls int } }
	if err := json.Unmarshal([]byte(v.page("api/v1/webhooks")), &console); err != nil {
		t.Fatal(err)
	}
	if len(console.Hosts) != 1 || console.Hosts[0].Calls != 3 {
		t.Errorf("the console shows the hosts %+v", console.Hosts)
	}
	out := v.run("deliveries")
	times := regexp.MustCompile(`(?m)^20\S+`).FindAllString(out, -1)
	if len(times) != 3 {
		t.Fatalf("the deliveries:\n%s", out)
	}
	for i, want := range []time.Duration{time.Hour, 2 * time.Hour, 26 * time.Hour} {
		if at, err := time.Parse(time.RFC3339Nano, times[i]); err != nil || !v.is(at.Sub(t0), want) {
			t.Errorf("delivery %d, %s: want %v after %v, %v", i+1, times[i], want, t0, err)
		}
	}
}

func TestDevDeliverRefusesAFile(t *testing.T) {
	file := t.TempDir() + "/webhooks.yaml"
	if err := os.WriteFile(file, []byte("endpoints:\n- match: pay\n  timeout: 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := timerd(t, "", "dev", "--deliver", file)
	if code != exitUsage || !strings.Contains(errs, "url is missing") || !strings.Contains(errs, "timeout") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	code, _, errs = timerd(t, "", "dev", "--deliver", file+"x")
	if code != exitUsage || !strings.Contains(errs, "--deliver: ") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}
