package schedule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/testenv"
)

// A mark under another name is not that timer's own.
func TestMarksAreNotExchangeable(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	x.do("FCALL", "timer_set", 1, k+"a", "A", "PX", 60000)
	x.do("FCALL", "timer_set", 1, k+"b", "B", "PX", 60000)
	x.do("RENAME", k+"a", k+"b")
	x.observe(gone(k+"a"), touched(k+"b"))
	if got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, k+"b")); !strings.HasSuffix(got,
		"payload <nil> state pending]") {
		t.Errorf("timer_get after RENAME: %s, want no payload rather than B", got)
	}
}

// payloadIs fails unless timer_get returns this payload, once an event of the key has been taken in. "<nil>" means
// none.
func (x *index) payloadIs(key, want string) {
	x.t.Helper()
	x.observe(touched(key))
	got := fmt.Sprint(x.do("FCALL_RO", "timer_get", 1, key))
	if _, got, _ := strings.Cut(strings.TrimSuffix(got, " state pending]"), "payload "); got != want {
		x.t.Errorf("timer_get %s: payload %s, want %s", key, got, want)
	}
}

// Redis keeps a mark as an integer, whatever the file it was read from. Valkey 9.1 keeps it in one piece with its key.
func TestMarksAreIntegers(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t)
	x := newIndexFor(t, server.Client(), server.Client(), 1000)
	x.do("FCALL", "timer_set", 1, k+"2", "mine", "PX", 60000)
	x.retry("event", x.redisNow()+60000, 2, "again")
	want := []any{"int"}
	if server.IsValkey() {
		want = append(want, "embstr")
	}
	integers := func(when string) {
		t.Helper()
		for _, key := range []string{k, k + "2"} {
			if got := x.do("OBJECT", "ENCODING", key); !slices.Contains(want, got) {
				t.Errorf("%s: the mark of %s is stored as %v, want %v", when, key, got, want)
			}
		}
		x.payloadIs(k, "again")
		x.payloadIs(k+"2", "mine")
	}
	integers("as written")
	server.Restart()
	integers("read back from commands")
	x.do("BGREWRITEAOF")
	testenv.Eventually(t, time.Minute, func() bool {
		info, _ := x.do("INFO", "persistence").(string)
		return strings.Contains(info, "aof_rewrite_in_progress:0") &&
			strings.Contains(info, "aof_rewrite_scheduled:0") &&
			strings.Contains(info, "aof_rewrites:1")
	}, "the append-only file to be rewritten")
	server.Restart()
	integers("read back from an RDB")
}

// A mark that other commands have changed is never taken for the payload.
func TestChangedMarks(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	for i, test := range []struct {
		command []any // without the key
		want    string
	}{
		{[]any{"PEXPIRE", 90000}, "mine"},
		{[]any{"APPEND", "more"}, "more"},
		{[]any{"APPEND", "42"}, "42"},
		{[]any{"SETRANGE", 15, "x"}, "<nil>"},
		{[]any{"SETRANGE", 0, "x"}, "<nil>"},
		{[]any{"SETRANGE", 0, "ten bytes!"}, "<nil>"},
		{[]any{"SETRANGE", 1, "abc"}, "<nil>"},
		{[]any{"SETRANGE", 8, "abcdefgh"}, "<nil>"},
		{[]any{"SETRANGE", 11, "abcdefgh and more"}, "<nil>"},
		{[]any{"SETRANGE", 20, "behind it"}, "behind it"},
		{[]any{"SETRANGE", 0, "a value of twenty bytes"}, "a value of twenty bytes"},
		{[]any{"SETBIT", 7, 0}, "<nil>"},
		{[]any{"SETBIT", 100, 1}, "<nil>"},
		{[]any{"BITFIELD", "SET", "i64", 0, 0}, "<nil>"},
		{[]any{"BITFIELD", "INCRBY", "u8", 24, 1}, "<nil>"},
		{[]any{"GETEX", "PX", 90000}, "mine"},
		{[]any{"DECRBY", 1_000_000_000_000_000_000}, "<nil>"},
		{[]any{"SET", "{\"order_id\":0020261126}", "KEEPTTL"}, "{\"order_id\":0020261126}"},
		{[]any{"INCR"}, "<nil>"},
		{[]any{"DECR"}, "<nil>"},
		{[]any{"INCRBY", 10_000_000}, "<nil>"},
		{[]any{"DECRBY", 10_000_000}, "<nil>"},
		{[]any{"INCRBYFLOAT", "0.5"}, "<nil>"},
		{[]any{"SET", "-8", "KEEPTTL"}, "-8"},
		{[]any{"SET", "-80116109100", "KEEPTTL"}, "-80116109100"},
		{[]any{"SET", "-80116109x0x12345678", "KEEPTTL"}, "-80116109x0x12345678"},
		{[]any{"SET", "-8011610910012345678", "KEEPTTL"}, "<nil>"},
	} {
		key := fmt.Sprint(k, i)
		x.do("FCALL", "timer_set", 1, key, "mine", "PX", 60000)
		x.do(slices.Insert(test.command, 1, any(key))...)
		x.payloadIs(key, test.want)
	}
}
