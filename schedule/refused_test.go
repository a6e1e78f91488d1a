package schedule_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/keys"
)

// calls are the calls of the library that write, without the key behind the number of keys.
func calls() [][]any {
	return [][]any{
		{"timer_set", "new", "PX", 60_000},
		{"timer_set", "new", "PXAT", 1, "XX"},
		{"timer_set", strings.Repeat("n", 20_000), "PX", 90_000, "LATE", 5, "NX"},
		{"timer_repeat", "new", "EVERY", 60_000},
		{"timer_repeat", "new", "CRON", "0 9 * * *"},
		{"timer_cancel"},
		{"timer_cancel", "UNTIL", int64(1) << 50},
	}
}

// before returns the states in which a call may find a key's timers, each with the way to get there.
func before() map[string]func(x *index) {
	set := func(x *index) { x.do("FCALL", "timer_set", 1, k, "old", "PX", 50_000) }
	overdue := func(x *index) {
		x.do("ZADD", keys.Single.Due(), 1000, k)
		x.do("HSET", keys.Single.Data(), k, ":overdue")
	}
	return map[string]func(x *index){
		"nothing":         func(*index) {},
		"another of app1": func(x *index) { x.do("FCALL", "timer_set", 1, "app1:b:c:d", "old", "PX", 50_000) },
		"pending":         set,
		"a plain key":     func(x *index) { x.do("SET", k, "plain", "PX", 50_000); x.observe(touched(k)) },
		"no timer":        func(x *index) { x.do("SET", k, "plain") },
		"overdue":         overdue,
		"overdue and set": func(x *index) { overdue(x); x.do("SET", k, "plain", "PX", 50_000) },
		"contested": func(x *index) {
			set(x)
			x.do("HSET", keys.Single.Data(), ":?:"+k, "1000/:contested", ":d:"+k, "1000/:dismissed")
			x.do("ZADD", keys.Single.Due(), x.redisNow()+10_000, ":?:"+k, x.redisNow()+10_000, ":d:"+k)
		},
		"owed": func(x *index) {
			set(x)
			x.do("ZADD", keys.Single.Firing(), 0, "1000::"+k)
			x.do("HSET", keys.Single.FiringData(), "1000::"+k, ":owed")
			x.do("ZADD", keys.Single.Owed(), 0, fmt.Sprintf("%d:%s:1000:", len(k), k))
		},
		"beside": func(x *index) {
			set(x)
			for _, name := range []string{"9000000000000.2", "s1000."} {
				x.do("ZADD", keys.Single.Due(), 9e12, ":"+name+":"+k)
				x.do("HSET", keys.Single.Data(), ":"+name+":"+k, "2:beside")
				x.do("ZADD", keys.Single.Beside(), 0, fmt.Sprintf("%d:%s:%s", len(k), k, name))
			}
			x.do("ZADD", keys.Single.Aside(), 1000, ":s1000.:"+k)
		},
		"repeating":     func(x *index) { x.do("FCALL", "timer_repeat", 1, k, "old", "EVERY", 50_000) },
		"to be planned": func(x *index) { x.do("FCALL", "timer_repeat", 1, k, "old", "CRON", "0 8 * * *") },
	}
}

// content returns all keys of the server, their values and when they run out.
func (x *index) content() string {
	x.t.Helper()
	return fmt.Sprint(x.do("EVAL", `local all = redis.call('KEYS', '*')
table.sort(all)
for i = 1, #all do
  all[i] = all[i] .. ' ' .. redis.sha1hex(redis.call('DUMP', all[i])) .. ' ' .. redis.call('PEXPIRETIME', all[i])
end
return table.concat(all, '\n')`, 0))
}

// nothing is the name of the missing right for a user with all rights of a producer.
const nothing = "nothing"

// producer is the user producer of deploy/users.acl: its rights, and, by a name, each way to lack one of them.
func producer(t *testing.T) (rights []any, lacking map[string][]any) {
	t.Helper()
	acl, err := os.ReadFile("../deploy/users.acl")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(acl), "user producer on resetpass ")
	line, _, _ = strings.Cut(line, "\n")
	lacking = map[string][]any{}
	for word := range strings.FieldsSeq(line) {
		rights = append(rights, word)
	}
	// those of +@string that a call may use
	for _, word := range append(strings.Fields(line), "+set", "+get", "+getrange", "+strlen") {
		if strings.HasPrefix(word, "+") && !strings.HasPrefix(word, "+@") {
			lacking[word] = []any{"-" + word[1:]}
		}
	}
	names := []string{"due", "data", "firing", "firingdata", "fired", "known", "owed", "beside", "aside", "refused",
		"repeat", "calls", "database"}
	for _, name := range names {
		only := []any{"resetkeys", "~app1:*"}
		for _, other := range names {
			if other != name {
				only = append(only, "~timerd:{t}:"+other)
			}
		}
		lacking["the key "+name] = only
		lacking["writing the key "+name] = append(slices.Clone(only), "%R~timerd:{t}:"+name)
		lacking["reading the key "+name] = append(slices.Clone(only), "%W~timerd:{t}:"+name)
	}
	lacking["the keys of timerd"] = []any{"resetkeys", "~app1:*"}
	lacking["the timer's key"] = []any{"resetkeys", "~timerd:{t}:*"}
	lacking["channels"] = []any{"resetchannels"}
	lacking[nothing] = nil
	return rights, lacking
}

// refusals tries calls as users who lack one right each.
type refusals struct {
	*index
	users   map[string]*redis.Client // by the missing right
	prepare func(x *index)
	content string // as prepare has left it
}

// newRefusals makes a user for each way to lack a right that is wanted.
func newRefusals(t *testing.T, wanted func(how string) bool) *refusals {
	t.Helper()
	server := testenv.Redis(t, devserver.Directive("appendonly", "no"))
	x := newIndexFor(t, server.Client(), server.Client(), 30_000)
	x.seeded = true
	r := &refusals{index: x, users: map[string]*redis.Client{}}
	rights, lacking := producer(t)
	for how, lack := range lacking {
		if wanted(how) {
			name := strings.ReplaceAll(how, " ", "-")
			x.do(slices.Concat([]any{"ACL", "SETUSER", name, "reset", "on", ">-"}, rights, lack)...)
			r.users[how] = server.Client(func(o *redis.Options) { o.Username, o.Password = name, "-" })
		}
	}
	return r
}

func (r *refusals) begin() {
	r.do("FLUSHALL")
	r.do("SET", keys.Single.Database(), 0)
	r.prepare(r.index)
	r.content = r.index.content()
}

// refuses reports whether a call is refused. If so it has changed nothing.
func (r *refusals) refuses(how string, call []any) bool {
	r.t.Helper()
	err := r.users[how].Do(r.t.Context(), slices.Concat([]any{"FCALL", call[0], 1, k}, call[1:])...).Err()
	if err == nil || errors.Is(err, redis.Nil) {
		return false
	}
	if after := r.index.content(); after != r.content {
		r.t.Errorf("%.60s without %s: %v\nbefore:\n%s\nafter:\n%s", fmt.Sprint(call), how, err, r.content, after)
	}
	return true
}

// outOfMemory reports whether a call is refused at maxmemory. If so it has changed nothing.
func (r *refusals) outOfMemory(call []any) bool {
	r.do("CONFIG", "SET", "maxmemory", 1)
	defer r.do("CONFIG", "SET", "maxmemory", 0)
	return r.refuses(nothing, call)
}

// each tries every call by every user, in a state of the key's timers.
func (r *refusals) each(t *testing.T, prepare func(x *index)) {
	r.t, r.prepare = t, prepare
	refused := map[string]bool{}
	r.begin()
	for _, call := range calls() {
		for how := range r.users {
			if r.refuses(how, call) {
				refused[how] = true
			} else {
				r.begin()
			}
		}
		if r.outOfMemory(call) == (call[0] == "timer_cancel") {
			t.Errorf("%.60s at maxmemory: refused %t", fmt.Sprint(call), call[0] != "timer_cancel")
		}
		r.begin()
	}
	if refused[nothing] {
		t.Error("the rights of deploy/users.acl are not enough")
	}
	for _, how := range []string{"+zadd", "+hset", "+set", "the keys of timerd", "writing the key due"} {
		if !refused[how] {
			t.Errorf("without %s nothing was refused", how)
		}
	}
}

// What Redis refuses changes nothing: the payload, the due time and the repetition of the timer stay.
func TestRefusedCallsChangeNothing(t *testing.T) {
	t.Parallel()
	usual := []string{nothing, "+zadd", "+hset", "+set", "+zrem", "the keys of timerd", "writing the key due",
		"writing the key data"}
	r := newRefusals(t, func(how string) bool { return slices.Contains(usual, how) })
	for _, state := range []string{"nothing", "pending", "repeating"} {
		t.Run(state, func(t *testing.T) { r.each(t, before()[state]) })
	}
}

// The same for each right and each key of the schedule, whatever timers the key has.
func TestRefusedCallsChangeNothingAtScale(t *testing.T) {
	t.Parallel()
	r := newRefusals(t, func(string) bool { return true })
	for state, prepare := range before() {
		t.Run(state, func(t *testing.T) { r.each(t, prepare) })
	}
}
