package core_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/test/system"
)

// TestCommands is CONTRACT's table of the meaning of each Redis command: each row works on keys of its own in one
// system, and all firings are judged at the end.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	far := fmt.Sprint(s.Now() + 3_600_000)

	rows := []struct {
		name string
		// commands, with K for the row's key and K2 for a second one; "adopt" waits
		// until K is adopted, "due" until K has run out
		commands []string
		fires    []string // payloads of K; those of K2 after "K2 "
	}{
		{"set-ex", []string{"SET K v EX 3"}, []string{"v"}},
		{"set-px", []string{"SET K v PX 2500"}, []string{"v"}},
		{"set-pxat", []string{"SET K v PXAT SOON"}, []string{"v"}},
		{"setex", []string{"SETEX K 3 v"}, []string{"v"}},
		{"psetex", []string{"PSETEX K 2500 v"}, []string{"v"}},
		{"expire", []string{"SET K v", "EXPIRE K 3"}, []string{"v"}},
		{"pexpireat", []string{"SET K v", "PEXPIREAT K SOON"}, []string{"v"}},
		{"getex", []string{"SET K v", "GETEX K PX 2500"}, []string{"v"}},
		{"rename-onto", []string{"SET K2 v PX 2500", "RENAME K2 K"}, []string{"v"}},
		{"rename-away", []string{"SET K v PX 4000", "adopt", "RENAME K K2"}, []string{"K2 v"}},
		{"rename-over-a-timer", []string{"SET K old PX 4000", "adopt", "SET K2 new PX 2500", "RENAME K2 K"},
			[]string{"new"}},
		{"copy-onto", []string{"SET K2 v PX 2500", "COPY K2 K"}, []string{"v", "K2 v"}},
		{"extend", []string{"SET K v PX 4000", "adopt", "PEXPIRE K 4500"}, []string{"v"}},
		{"shorten", []string{"SET K v EX 3600", "adopt", "PEXPIRE K 300"}, []string{"v"}},
		{"reschedule", []string{"SET K old EX 3600", "adopt", "SET K new PX 2500"}, []string{"new"}},
		{"keepttl", []string{"SET K old PX 4000", "adopt", "SET K new KEEPTTL"}, []string{"new"}},
		{"append", []string{"SET K old PX 4000", "adopt", "APPEND K er"}, []string{"older"}},
		{"setrange", []string{"SET K old PX 4000", "adopt", "SETRANGE K 1 dd"}, []string{"odd"}},
		{"incr", []string{"SET K 41 PX 4000", "adopt", "INCR K"}, []string{"42"}},
		{"hash", []string{"HSET K order 42 state open", "PEXPIRE K 2500"}, []string{`{"order":"42","state":"open"}`}},
		{"hash-later", []string{"HSET K order 42", "PEXPIRE K 4000", "adopt", "HSET K order 43"},
			[]string{`{"order":"43"}`}},
		{"list", []string{"RPUSH K a b", "PEXPIRE K 2500"}, []string{"<missing>"}},
		{"empty", []string{"PSETEX K 2500 EMPTY"}, []string{""}},
		{"del", []string{"SET K v EX 3600", "adopt", "DEL K"}, nil},
		{"unlink", []string{"SET K v EX 3600", "adopt", "UNLINK K"}, nil},
		{"getdel", []string{"SET K v EX 3600", "adopt", "GETDEL K"}, nil},
		{"persist", []string{"SET K v EX 3600", "adopt", "PERSIST K"}, nil},
		{"getex-persist", []string{"SET K v EX 3600", "adopt", "GETEX K PERSIST"}, nil},
		{"set-without-ttl", []string{"SET K v EX 3600", "adopt", "SET K w"}, nil},
		{"rename-away-to-nobodys", []string{"SET K v EX 3600", "adopt", "RENAME K nobody"}, nil},
		{"move", []string{"SET K v EX 3600", "adopt", "MOVE K 9"}, nil},
		{"set-again-after-due", []string{"SET K one PX 1500", "adopt", "due", "SET K two PX 1500"},
			[]string{"one", "two"}},
		{"timer_set", []string{"FCALL timer_set 1 K v PX 600"}, []string{"v"}},
		{"timer_set-then-expire", []string{"FCALL timer_set 1 K v PX 3600000", "PEXPIRE K 300"}, []string{"v"}},
		{"timer_set-then-set", []string{"FCALL timer_set 1 K v PX 3600000", "SET K w PX 2500"}, []string{"w"}},
		{"timer_set-then-del", []string{"FCALL timer_set 1 K v PX 3600000", "DEL K"}, nil},
		{"timer_cancel", []string{"FCALL timer_set 1 K v PX 3600000", "FCALL timer_cancel 1 K"}, nil},
		{"timer_cancel-plain", []string{"SET K v EX 3600", "adopt", "FCALL timer_cancel 1 K"}, nil},
		{"attempt", []string{`SET K {"attempt":4} PX 2500`}, []string{`{"attempt":4}`}},
		{"pending", []string{"SET K v PXAT FAR", "adopt"}, nil},
	}
	var want []string
	for _, row := range rows {
		key := "cmd:test:" + row.name + ":1"
		replacer := strings.NewReplacer("SOON", fmt.Sprint(s.Now()+2500), "FAR", far, "EMPTY", "")
		for _, command := range row.commands {
			switch command {
			case "adopt":
				s.Adopted(key)
				continue
			case "due":
				testenv.Eventually(t, system.Patience, func() bool { return s.Do("EXISTS", key) == int64(0) },
					key+" to run out")
				continue
			}
			var args []any
			for word := range strings.SplitSeq(command, " ") {
				switch word {
				case "K":
					word = key
				case "K2":
					word = key + "b"
				}
				args = append(args, replacer.Replace(word))
			}
			s.Do(args...)
		}
		for _, payload := range row.fires {
			name := key
			if rest, ok := strings.CutPrefix(payload, "K2 "); ok {
				name, payload = key+"b", rest
			}
			want = append(want, name+"="+payload)
		}
	}
	// RESTORE takes bytes that do not fit the table.
	s.Do("SET", "nobody", "v")
	s.Do("RESTORE", "cmd:test:restore:1", 2500, s.Do("DUMP", "nobody"))
	want = append(want, "cmd:test:restore:1=v")

	for _, e := range s.Expect(c, want...) {
		if e.Key.Type == "attempt" && e.Attempt != 4 {
			t.Errorf("attempt %d, want the payload's 4", e.Attempt)
		}
	}
	c.Stays(len(want), 300*time.Millisecond)
	if got := s.Do("ZRANGE", "timerd:{t}:due", 0, -1); fmt.Sprint(got) != "[cmd:test:pending:1]" {
		t.Errorf("still pending: %v", got)
	}
}

// EXPIRE in the past deletes on Redis, so it cancels; Valkey reports that the
// key expired, so it fires.
func TestExpireInThePast(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	s.Do("SET", "a:b:c:past", "v", "EX", 3600)
	s.Adopted("a:b:c:past")
	s.Do("PEXPIREAT", "a:b:c:past", 1)
	s.Do("FCALL", "timer_set", 1, "a:b:c:marker", "m", "PX", 500)
	want := []string{"a:b:c:marker=m"}
	if s.Redis.IsValkey() {
		want = append(want, "a:b:c:past=v")
	}
	s.Expect(c, want...)
	s.Settled()
}

func TestFlushForgetsAll(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	s.Do("FCALL", "timer_set", 1, "a:b:c:1", "v", "EX", 3600)
	s.Do("SET", "a:b:c:2", "v", "EX", 3600)
	s.Adopted("a:b:c:2")
	var due *redis.Cmd
	_, err := s.RDB.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error { // none is due before all is flushed
		due = pipe.FCall(t.Context(), "timer_set", []string{"a:b:c:3"}, "v", "PX", 500)
		pipe.Set(t.Context(), "a:b:c:4", "v", 500*time.Millisecond)
		pipe.FlushAll(t.Context())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Do("FCALL", "timer_set", 1, "a:b:c:5", "after", "PX", 800)
	s.Expect(c, "a:b:c:5=after")
	s.After(due.Val().(int64))
	c.Stays(1, 300*time.Millisecond)
	for _, key := range []string{"a:b:c:1", "a:b:c:2"} {
		if got := s.Do("FCALL_RO", "timer_get", 1, key); got != nil {
			t.Errorf("%s is still there: %v", key, got)
		}
	}
	s.Settled()
}

func TestOwedTimerWithAMarkSetAgain(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Start()
	c := s.Collect()
	// As long as NATS is away a firing is owed, and timers set meanwhile are others.
	s.NATS.Stop()
	var want []string
	for i := range 3 {
		for _, key := range []string{"a:b:c:plain", "a:b:c:set"} {
			payload := fmt.Sprint(i)
			if key == "a:b:c:plain" {
				s.Do("SET", key, payload, "EX", 3600)
				s.Adopted(key)
				far := s.Due(key)
				s.Do("PEXPIRE", key, 100)
				testenv.Eventually(t, system.Patience, func() error { // it may have run out by then
					if at := s.RDB.ZScore(t.Context(), keys.Single.Due(), key).Val(); int64(at) == far {
						return fmt.Errorf("it is due at %d", far)
					}
					return nil
				}, "the shorter time to be known")
				testenv.Eventually(t, system.Patience, func() bool { return s.Do("EXISTS", key) == int64(0) },
					key+" to run out")
			} else {
				s.After(s.Do("FCALL", "timer_set", 1, key, payload, "PX", 100).(int64))
			}
			want = append(want, key+"="+payload)
		}
	}
	s.NATS.Start()
	s.Expect(c, want...)
	s.Settled()
}

func TestHostileInput(t *testing.T) {
	t.Parallel()
	s := system.New(t)
	s.Env["TIMERD_MAX_PAYLOAD"] = "2000"
	s.Start()
	c := s.Collect()
	hostile := []string{
		"a.b:*:>:x", "a b:c\r\nd:e\x00f:g\nh", "\xff\xfe:\x80:\xc3\x28:\xe2\x82", "a:b:c: lead and trail ",
		"%41:%:%zz:%25", "a:b:c:" + strings.Repeat("é", 509), strings.Repeat("m", 128) + ":" +
			strings.Repeat(".", 128) + ":" + strings.Repeat("\x00", 128) + ":x",
		"timerd:{t}:due:x", "a:b:c:::", "a:b:c:@1.1", "1:2:3:4", ":?:a:b:c:d"[3:],
	}
	payloadsOf := map[string]string{
		"nul": "\x00", "crlf": "a\r\nb", "raw": "\xff\x00\xfe", "json": ` {"a" : [1,2,{"b":"\u00e9"}] } `,
		"badjson":     `{"a":`,
		"badutf8json": "{\"a\":\"\xff\"}", "number": "1e400", "string": `"quoted"`, "null": "null", "empty": "",
		"limit": strings.Repeat("x", 2000), "toolarge": strings.Repeat("x", 2001), "mark-like": "\x00tmx",
		"deep": strings.Repeat("[", 900) + strings.Repeat("]", 900),
	}
	wantData := map[string]string{}
	for i, key := range hostile {
		if i%2 == 0 {
			s.Do("SET", key, "p", "PX", system.Soon)
		} else {
			s.Do("FCALL", "timer_set", 1, key, "p", "PX", 2500)
		}
		wantData[key] = "p"
	}
	for name, payload := range payloadsOf {
		key := "pay:load:type:" + name
		s.Do("SET", key, payload, "PX", system.Soon)
		wantData[key] = payload
	}
	wantData["pay:load:type:toolarge"] = "<toolarge>"
	// Too long, or nobody's: they fire nothing.
	for _, key := range []string{"a:b:c:" + strings.Repeat("d", 1019), "a:" + strings.Repeat("b", 129) + ":c:d",
		"a:b:c", "a::c:d", "::::", ":b:c:d"} {
		s.Do("SET", key, "p", "PX", 500)
	}
	var want []string
	for key, data := range wantData {
		want = append(want, key+"="+data)
	}
	all := s.Expect(c, want...)
	c.Stays(len(want), 200*time.Millisecond)
	for _, e := range all {
		if strings.ContainsFunc(e.ID, func(r rune) bool { return r < '!' || r > '~' }) {
			t.Errorf("id %q would be changed on its way", e.ID)
		}
	}
	if !slices.ContainsFunc(all, func(e event.Event) bool { return e.ContentType == "application/octet-stream" }) {
		t.Error("no binary payload")
	}
	s.Settled()
}
