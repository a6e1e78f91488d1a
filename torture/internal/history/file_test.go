package history_test

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/torture/internal/history"
)

func TestReadIsTheInverseOfWrite(t *testing.T) {
	run := history.Run{Seed: 7, Shape: "several", Timerds: 3, Began: 1}
	op := history.Op{Key: "a:b:c:\"1\"", Kind: history.Timer, Payload: "é\n", Outcome: history.Unknown, Error: "EOF",
		Invoked: 2, Ended: 3}
	fault := history.Fault{Kind: "redis cut", Effect: history.Deafens, Timerds: []int{1}, Apps: []string{"app"},
		Slots: []history.Slots{{From: 0, To: 7}}, From: 4, Healed: 5, Hearing: 6, Ready: 5}
	message := history.Message{Stream: history.FiredStream, Seq: 9, Stored: 7, ID: "x", Key: op.Key, Due: 6, Attempt: 1}
	hold := history.HoldOp{Namespace: "held:run", Kind: history.ResumeRate, Rate: 5, Outcome: history.OK, Invoked: 3,
		Ended: 4}
	stall := history.Stall{From: 6, To: 7}
	call := history.Call{WebhookID: "x", Key: op.Key, EventID: "y", Attempt: 2, Host: "127.0.0.1:1", Deliverer: 1,
		Start: 3, At: 6, Answered: 7, Status: 200}
	delivery := history.Delivery{ID: "y", Origin: "x", Key: op.Key, Attempt: 2, Status: 200, Result: history.Delivered,
		Time: 5, Took: 2, Stored: 8}
	end := history.End{At: 8, Drained: true}
	path := filepath.Join(t.TempDir(), "history")
	w, err := history.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []history.Record{{Run: &run}, {Op: &op}, {Fault: &fault}, {Message: &message}, {Hold: &hold},
		{Stall: &stall}, {Call: &call}, {Delivery: &delivery}, {End: &end}} {
		w.Write(r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := history.Read(bytes.NewReader(b))
	want := &history.History{
		Run: run, Ops: []history.Op{op}, Faults: []history.Fault{fault}, Messages: []history.Message{message},
		Holds: []history.HoldOp{hold}, Stalls: []history.Stall{stall},
		Calls: []history.Call{call}, Deliveries: []history.Delivery{delivery}, End: end,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	broken := b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1]
	if _, err := history.Read(bytes.NewReader(broken)); err == nil || !strings.Contains(err.Error(), "no end") {
		t.Errorf("a history without an end: %v", err)
	}
}

// A long payload is the same in an operation and in a message, and differs from all others.
func TestLongPayloadsAreDigests(t *testing.T) {
	payloads := []string{strings.Repeat("a", 1000), strings.Repeat("a", 1001), strings.Repeat("b", 1001),
		strings.Repeat("a", 300_000)}
	seen := map[string]bool{}
	for _, payload := range payloads {
		path := filepath.Join(t.TempDir(), "history")
		w, err := history.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		op, m := history.Op{Key: "k", Payload: payload}, history.Message{Key: "k", Payload: payload}
		for _, r := range []history.Record{{Op: &op}, {Message: &m}, {End: &history.End{At: 1}}} {
			w.Write(r)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		h, err := history.Read(bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		got := h.Ops[0].Payload
		if got != h.Messages[0].Payload || seen[got] || len(got) > 1000 || op.Payload != payload {
			t.Errorf("%d bytes are written down as %q and %q", len(payload), got, h.Messages[0].Payload)
		}
		seen[got] = true
	}
}

func TestKeysOfANamespace(t *testing.T) {
	for namespace, want := range map[string]bool{
		"a": true, "a:b": true, "a:b:c": true, "*": true, "*:b": true, "a:*:c": true, "b": false, "a:c": false,
		"a:b:d": false, "aa": false,
	} {
		if got := history.Matches(namespace, "a:b:c:1:2"); got != want {
			t.Errorf("%s: %v", namespace, got)
		}
	}
}
