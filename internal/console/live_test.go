package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// nextParts reads the next message of a stream.
func nextParts(t *testing.T, lines *bufio.Scanner) map[string]string {
	t.Helper()
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			parts := map[string]string{}
			if err := json.Unmarshal([]byte(data), &parts); err != nil {
				t.Fatal(err)
			}
			return parts
		}
	}
	t.Fatal("the stream has ended: ", lines.Err())
	return nil
}

// A stream sends the parts of the page, and keeps them current.
func TestLive(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	response, err := http.DefaultClient.Do(w.request(http.MethodGet, "/live", nil).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); kind != "text/event-stream" {
		t.Fatal(kind)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	first := nextParts(t, lines)
	has(t, first["figures"], "<strong>0</strong> <span>pending</span>")
	w.set("shop:order:timeout:1", "x")
	w.letter("shop:<b>:timeout:2", "gone")
	for {
		parts := nextParts(t, lines)
		if strings.Contains(parts["figures"], "<strong>1</strong> <span>pending</span>") &&
			strings.Contains(parts["figures"], "<strong>1</strong> <span>dead letters</span>") {
			break
		}
	}
	if strings.Contains(w.page("/"), "<b>") {
		t.Error("markup of somebody else")
	}
	cancel()
}

// The stream of a job ends with it.
func TestLiveJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.set("shop:order:timeout:1", "x")
	at := w.post("/actions", url.Values{"do": {"cancel"}, "key": {"shop:order:timeout:1"}}).Header.Get("Location")
	text := w.page(at + "/live")
	has(t, text, "event: end", "data: {")
	if a := w.get("/jobs/none/live"); a.StatusCode != http.StatusNotFound {
		t.Error(a.Status)
	}
}
