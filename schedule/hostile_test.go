package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// heldFor returns the time for which a call holds Redis: the shortest of several, as others may have had the processor.
func (x *index) heldFor(calls int, args ...any) time.Duration {
	x.t.Helper()
	least := time.Hour
	x.do("CONFIG", "SET", "slowlog-log-slower-than", "0", "slowlog-max-len", "100")
	for range calls {
		x.do("SLOWLOG", "RESET")
		_ = x.rdb.Do(x.t.Context(), args...).Err() // the fault of the call
		for _, slow := range x.rdb.SlowLogGet(x.t.Context(), -1).Val() {
			if strings.EqualFold(slow.Args[0], fmt.Sprint(args[0])) {
				least = min(least, slow.Duration)
			}
		}
	}
	return least
}

// copying returns the time for which a call with an argument of the given length holds Redis although it does nothing:
// Redis itself copies the arguments of a script.
func (x *index) copying(bytes int) time.Duration {
	return x.heldFor(5, "EVAL", "return 0", 0, strings.Repeat("a", bytes))
}

// Whatever a tenant's payloads and arguments, a call of the library holds Redis for a few ms, or for a few times the
// time of copying its arguments. The faults behind these bounds took several times as long. Both are measured by turns,
// until other processes leave them the processor.
func TestHostileCallsHoldRedisBriefly(t *testing.T) {
	x := newLargeIndex(t)
	filled := func(begin, part, end string) string {
		return begin + strings.Repeat(part, (largePayload-len(begin)-len(end))/len(part)) + end
	}
	set := func(key, payload string) { x.do("FCALL", "timer_set", 1, key, payload, "PX", 600_000) }
	set("a:b:arrays:1", filled(`{"attempt":[`, `[],`, `[]]}`))
	set("a:b:objects:1", filled(`{"x":[`, `{},`, `{}],"attempt":2}`))
	set("a:b:names:1", filled(`{"attempt":2`, `,"a":1`, `}`))
	set("a:b:escapes:1", filled(`{"attempt":"`, `\u0001`, `"}`))
	set("a:b:commas:1", filled(`{"attempt":"`, `,`, `"}`))
	control := strings.Repeat("\x01", largePayload-100)
	x.do("HSET", "a:b:hash:1", "f", control)
	x.do("PEXPIRE", "a:b:hash:1", 600_000)
	const large = 8 << 20
	copying := x.copying(large)
	few := func() time.Duration { return max(4*time.Millisecond, copying/2) }
	copied := func() time.Duration { return 6 * copying }
	huge := strings.Repeat("a", large)
	digits := strings.Repeat("1", large)
	for _, c := range []struct {
		name string
		most func() time.Duration
		call []any
	}{
		{"an attempt that is 87,000 arrays", few, []any{"FCALL_RO", "timer_get", 1, "a:b:arrays:1"}},
		{"an attempt behind 87,000 objects", few, []any{"FCALL_RO", "timer_get", 1, "a:b:objects:1"}},
		{"an attempt before 43,000 names", few, []any{"FCALL_RO", "timer_get", 1, "a:b:names:1"}},
		{"an attempt of 43,000 escapes", few, []any{"FCALL_RO", "timer_get", 1, "a:b:escapes:1"}},
		{"an attempt of 262,000 commas", few, []any{"FCALL_RO", "timer_get", 1, "a:b:commas:1"}},
		{"a hash of control characters", few, []any{"FCALL_RO", "timer_get", 1, "a:b:hash:1"}},
		{"a key of 8 MB", copied, []any{"FCALL", "timer_set", 1, "a:b:c:" + huge, "p", "PX", 1000}},
		{"a key of 8 MB without parts", copied, []any{"FCALL_RO", "timer_get", 1, huge}},
		{"an option of 8 MB", copied, []any{"FCALL", "timer_set", 1, k, "p", huge, 1000}},
		{"a delay of 8 MB", copied, []any{"FCALL", "timer_set", 1, k, "p", "PX", digits}},
		{"a limit of 8 MB", copied, []any{"FCALL", "timer_set", 1, k, "p", "PX", 1000, "LATE", digits}},
		{"what comes behind a limit of 8 MB", copied,
			[]any{"FCALL", "timer_set", 1, k, "p", "PX", 600_000, "LATE", 1, huge}},
		{"a trace of 8 MB", copied, []any{"FCALL", "timer_set", 1, k, "p", "PX", 600_000, "TRACE", "00-" + huge}},
		{"an option of a repetition of 8 MB", copied, []any{"FCALL", "timer_repeat", 1, k, "p", huge, 1000}},
		{"an interval of 8 MB", copied, []any{"FCALL", "timer_repeat", 1, k, "p", "EVERY", digits}},
		{"a zone of 8 MB", copied, []any{"FCALL", "timer_repeat", 1, k, "p", "CRON", "* * * * *", "TZ", "A" + huge}},
		{"UNTIL of 8 MB", copied, []any{"FCALL", "timer_cancel", 1, k, "UNTIL", digits}},
		{"FROM of 8 MB", copied, []any{"FCALL", "timer_cancel", 1, k, "UNTIL", 1, huge, 1}},
	} {
		held := x.heldFor(5, c.call...)
		for began := time.Now(); held > c.most() && time.Since(began) < time.Minute; {
			copying, held = x.copying(large), x.heldFor(5, c.call...)
		}
		t.Logf("%s: %v, copying 8 MB: %v", c.name, held, copying)
		if held > c.most() {
			t.Errorf("%s: a call holds Redis for %v, want at most %v", c.name, held, c.most())
		}
	}
}

// A call with more arguments than any has is refused before they are looked at.
func TestTooManyArguments(t *testing.T) {
	t.Parallel()
	x := newIndex(t)
	many := []any{"FCALL", "timer_set", 1, k, "p", "PX", 1000}
	for range 20 {
		many = append(many, "ATTEMPT", 1)
	}
	x.refuses("43 arguments, at most 32 are allowed", many...)
	many[1], many[5], many[6] = "timer_repeat", "EVERY", 1000
	x.refuses("43 arguments, at most 32 are allowed", many...)
	x.isEmpty()
}

// The attempt in a payload is found whatever else is in the payload, up to some thousands of values.
func TestStatedAttemptsAmongManyValues(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	for payload, want := range map[string]int64{
		`{"items":[` + strings.Repeat(`{"n":1},`, 1900) + `{}],"attempt":3}`:                        3,
		`{"text":"` + strings.Repeat("x", largePayload-100) + `","attempt":4}`:                      4,
		`{"attempt":5,"text":"` + strings.Repeat(`\u0001`, (largePayload-100)/6) + `"}`:             5,
		`{"attempt":6,"items":[` + strings.Repeat("1,", 3900) + `1]}`:                               6,
		`{"attempt":7,"items":[` + strings.Repeat("[],", largePayload/3-100) + `[]]}`:               1, // it fires as 7
		`{"attempt":` + strings.Repeat(" ", largePayload-100) + `8}`:                                8,
		`{"attempt":` + strings.Repeat("[", 40_000) + strings.Repeat("]", 40_000) + `,"attempt":2}`: 1,
	} {
		x.do("FCALL", "timer_set", 1, k, payload, "PX", 600_000)
		if got := x.get(k)["attempt"]; got != want {
			t.Errorf("%.40s…: attempt %v, want %d", payload, got, want)
		}
	}
}

// A hash with JSON of the greatest payload length fires with it; with one byte more, it fires without, whatever its
// characters become in JSON.
func TestHashesAtTheLimit(t *testing.T) {
	t.Parallel()
	x := newLargeIndex(t)
	for name, c := range map[string]struct {
		part string
		size int // of the part in JSON
	}{"letters": {"x", 1}, "control characters": {"\x01", 6}, "quotes": {`"`, 2}} {
		n := (largePayload - len(`{"f":""}`)) / c.size
		rest := strings.Repeat("x", largePayload-len(`{"f":""}`)-n*c.size)
		for more, want := range map[string]string{"": "", "x": "toolarge"} {
			x.do("DEL", k)
			x.do("HSET", k, "f", strings.Repeat(c.part, n)+rest+more)
			x.do("PEXPIRE", k, 600_000)
			payload, _ := x.get(k)["payload"].(string)
			if want == "" && len(payload) != largePayload || want != "" && payload != "" {
				t.Errorf("%s%s: a payload of %d bytes", name, more, len(payload))
			}
		}
		const fields = 300 // more than are kept in order
		args := []any{"HSET", k}
		for i := range fields {
			args = append(args, fmt.Sprintf("%03d", i), "")
		}
		size := len(`{}`) + fields*len(`"000":"",`) - 1
		value := strings.Repeat(c.part, (largePayload-size)/c.size)
		value += strings.Repeat("x", largePayload-size-len(value)/len(c.part)*c.size)
		for more, want := range map[string]int{"": largePayload, "x": 0} {
			x.do("DEL", k)
			x.do(args...)
			x.do("HSET", k, "007", value+more)
			x.do("PEXPIRE", k, 600_000)
			if payload, _ := x.get(k)["payload"].(string); len(payload) != want {
				t.Errorf("%d fields, %s%s: a payload of %d bytes, want %d", fields, name, more, len(payload), want)
			}
		}
	}
}

// get returns timer_get's reply for a key, by name.
func (x *index) get(key string) map[string]any {
	x.t.Helper()
	said, _ := x.do("FCALL_RO", "timer_get", 1, key).([]any)
	named := map[string]any{}
	for i := 0; i+1 < len(said); i += 2 {
		named[fmt.Sprint(said[i])] = said[i+1]
	}
	return named
}
