package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	exampleenv "github.com/timerd-io/timerd/examples/internal/testenv"
	"github.com/timerd-io/timerd/internal/testenv"
)

func TestProgram(t *testing.T) {
	testenv.NoLeaks(t)
	var out, errs strings.Builder
	err := run(t.Context(), []string{"-orders", "5", "-factor", "300", "-timeout", "500ms", "-timerd",
		exampleenv.Timerd(t)}, &out, &errs)
	if err != nil || errs.Len() > 0 {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	_, table, _ := strings.Cut(out.String(), "ORDER ")
	var got []string
	for line := range strings.Lines(table) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	for i, want := range []string{
		"ATTEMPT AFTER ANSWER RESULT",
		"-1 1 * 500 Internal Server Error retry",
		"2 * no answer within 500ms retry",
		"3 * 429 Too Many Requests retry",
		"4 * 200 delivered",
		"-2 1 * 200 delivered",
		"-3 1 * 503 Service Unavailable retry",
		"2 * 200 delivered",
		"-4 1 * 500 Internal Server Error retry",
		"2 * 410 Gone dead",
		"-5 1 * 500 Internal Server Error retry",
	} {
		before, after, _ := strings.Cut(want, " *")
		if i >= len(got) || !strings.Contains(got[i], before) || !strings.HasSuffix(got[i], after) {
			t.Fatalf("line %d: want %q in\n%s", i+1, want, &out)
		}
	}
	testenv.Lacks(t, out.String(), merchantSecret)
}

func TestProgramReportsFaults(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-orders 0", "at least 1"},
		{"-redis redis://127.0.0.1:1/0", "both Redis and NATS"},
		{"-redis redis://127.0.0.1:1/0 -nats nats://127.0.0.1:1", "connect to Redis at 127.0.0.1:1"},
		{"-timerd ./none", "make build"},
		{"-timerd go", "timerd dev ended at its start"},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.args, err, test.want)
		}
	}
	if err := run(t.Context(), []string{"-no-such-flag"}, io.Discard, io.Discard); err == nil ||
		errors.Is(err, io.EOF) {
		t.Errorf("an unknown flag: %v", err)
	}
}
