package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
)

const patience = time.Minute

// deliverTo has timerd deliver call a URL with a webhook.
func deliverTo(t *testing.T, url string) {
	t.Helper()
	s := exampleenv.Servers(t, "*=1s,1s,1s")
	d, err := startDeliverer(exampleenv.Timerd(t), s.NATSURL, endpoints(patience), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.stop(); err != nil {
			t.Error(err)
		}
	})
	payments := []payment{{Order: "4711", Amount: 1999, Currency: "EUR", PaidAt: time.Now(), NotifyURL: url}}
	if err := setCallbacks(t.Context(), client.New(s.Redis), payments, 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
}

// A shell verifies webhooks with openssl, and refuses others.
func TestShellReceiver(t *testing.T) {
	verify := func(body []byte, headers ...string) string {
		cmd := exec.CommandContext(t.Context(), "receivers/verify.sh", headers...)
		cmd.Env = append(os.Environ(), "WEBHOOK_SECRET="+merchantSecret)
		cmd.Stdin = bytes.NewReader(body)
		out, _ := cmd.CombinedOutput() // the text says it all
		return strings.TrimSpace(string(out))
	}
	said := make(chan []string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		id, at, signature := r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"),
			r.Header.Get("Webhook-Signature")
		said <- []string{
			verify(body, id, at, signature),
			verify(body, id, at, "v1,bm8= "+signature),
			verify(append(body, ' '), id, at, signature),
			verify(body, id+"x", at, signature),
			verify(body, id, "1763629200", signature),
		}
	}))
	defer server.Close()
	deliverTo(t, server.URL)
	select {
	case got := <-said:
		want := []string{"verified", "verified", "refused: no signature matches", "refused: no signature matches",
			"refused: the timestamp is over five minutes off"}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q, want %q", got, want)
		}
	case <-time.After(patience):
		t.Fatal("no webhook came")
	}
}

// Node.js verifies webhooks with the library of Standard Webhooks.
func TestNodeReceiver(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "verify.js"} {
		text, err := os.ReadFile(filepath.Join("receivers", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	install := exec.CommandContext(ctx, "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund",
		"--fetch-retries=1", "--fetch-timeout=20000")
	install.Dir = dir
	out, err := install.CombinedOutput()
	if err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	port, err := devserver.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	var said testenv.Output
	node := exec.CommandContext(ctx, "node", "verify.js", fmt.Sprint(port))
	node.Dir, node.Stdout, node.Stderr = dir, &said, &said
	node.Env = append(os.Environ(), "WEBHOOK_SECRET="+merchantSecret)
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	said.Wait(t, patience, "listening")
	deliverTo(t, "http://"+devserver.Address(port))
	if err := node.Wait(); err != nil || !strings.Contains(said.String(),
		"verified: pay:order:callback:4711, attempt 1") {
		t.Errorf("%v\n%s", err, said.String())
	}
}
