package schedule

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// AccountKind is the letter of a way into or out of the schedule, as the accounts in Redis have it.
type AccountKind string

// The kinds that Go names. lua/lib/account.lua has the others.
const (
	AccountFired   AccountKind = "f"
	AccountDead    AccountKind = "d"
	AccountUnsure  AccountKind = "e" // dead letters of firings whose events may be stored
	AccountDropped AccountKind = "l"
	AccountGuarded AccountKind = "g"
	AccountSkipped AccountKind = "k"
)

// Account counts the timers that have entered the schedule and left it since its account began, and those there. Redis
// counts in the very steps that change the schedule.
type Account struct {
	// Since is the start of the account, the earliest of several. Zero without any.
	Since   time.Time    `json:"since,omitzero"`
	Opening int64        `json:"opening"` // the timers there then
	In      AccountIn    `json:"in"`
	Out     AccountOut   `json:"out"`
	There   AccountThere `json:"there"`
	// Difference is Opening + In - Out - There: 0 unless timers were lost, or changed by a program that does not count.
	Difference int64 `json:"difference"`
	// Differences are the partitions that differ.
	Differences []AccountDifference `json:"differences"`
	// Without is the number of partitions with timers whose account has not begun, as while a timerd runs that does not
	// count. Moving is the number of partitions left out while moving.
	Without int64 `json:"without"`
	Moving  int64 `json:"moving"`

	// Earlier is the number of timers fired in earlier accounts of these partitions. Together with Out.Fired it never
	// falls, unless Redis loses data.
	Earlier int64 `json:"-"`
	// InFlight is the number of firings whose events may be stored, Unsure the number of dead letters of such firings.
	InFlight int64 `json:"-"`
	Unsure   int64 `json:"-"`
}

// Fired returns the number of timers fired in these accounts and earlier ones.
func (a *Account) Fired() int64 { return a.Out.Fired + a.Earlier }

// IsWhole reports whether the account has begun, and lacks no partition.
func (a *Account) IsWhole() bool { return !a.Since.IsZero() && a.Without+a.Moving == 0 }

// AccountIn counts timers that have entered. Only occurrences after the first one are Repeated; skipped ones count too.
type AccountIn struct {
	Set      int64 `json:"set"` // by the functions
	Adopted  int64 `json:"adopted"`
	Retried  int64 `json:"retried"` // postponed and replayed ones too
	Repeated int64 `json:"repeated"`
}

// AccountOut counts timers that have left.
type AccountOut struct {
	Fired     int64 `json:"fired"`
	Cancelled int64 `json:"cancelled"`
	Replaced  int64 `json:"replaced"`
	Dead      int64 `json:"dead"`
	Dropped   int64 `json:"dropped"`
	Guarded   int64 `json:"guarded"`
	Skipped   int64 `json:"skipped"`
}

// AccountThere counts the timers of the partitions with an account, by state. A timer that the next claim holds is
// owed.
type AccountThere struct {
	Pending   int64 `json:"pending"`
	Held      int64 `json:"held"`
	Owed      int64 `json:"owed"`
	Firing    int64 `json:"firing"`
	Parked    int64 `json:"parked"`
	Contested int64 `json:"contested"`
}

// AccountDifference is the difference of a partition.
type AccountDifference struct {
	Partition  keys.Partition `json:"partition"`
	Difference int64          `json:"difference"`
}

// Sum returns the number of timers that have entered.
func (in AccountIn) Sum() int64 { return in.Set + in.Adopted + in.Retried + in.Repeated }

// Sum returns the number of timers that have left.
func (o AccountOut) Sum() int64 {
	return o.Fired + o.Cancelled + o.Replaced + o.Dead + o.Dropped + o.Guarded + o.Skipped
}

// Sum returns the number of timers that are there.
func (t AccountThere) Sum() int64 {
	return t.Pending + t.Held + t.Owed + t.Firing + t.Parked + t.Contested
}

// AccountCount is the number of timers of a kind.
type AccountCount struct {
	Kind   string // as in the JSON
	Timers int64
}

// Kinds returns the kinds with timers.
func (in AccountIn) Kinds() []AccountCount {
	return counted([]AccountCount{{"set", in.Set}, {"adopted", in.Adopted}, {"retried", in.Retried},
		{"repeated", in.Repeated}})
}

// Kinds returns the kinds with timers.
func (o AccountOut) Kinds() []AccountCount {
	return counted([]AccountCount{{"fired", o.Fired}, {"cancelled", o.Cancelled}, {"replaced", o.Replaced},
		{"dead", o.Dead}, {"dropped", o.Dropped}, {"guarded", o.Guarded}, {"skipped", o.Skipped}})
}

// Kinds returns the states with timers.
func (t AccountThere) Kinds() []AccountCount {
	return counted([]AccountCount{{"pending", t.Pending}, {"held", t.Held}, {"owed", t.Owed}, {"firing", t.Firing},
		{"parked", t.Parked}, {"contested", t.Contested}})
}

// counted omits the kinds without timers.
func counted(all []AccountCount) []AccountCount {
	return slices.DeleteFunc(all, func(c AccountCount) bool { return c.Timers == 0 })
}

// Account reads the accounts of all partitions, and compares each with its timers. It changes nothing.
func (ix *Index) Account(ctx context.Context) (Account, error) {
	masters, err := ix.Masters(ctx)
	a := Account{Differences: []AccountDifference{}}
	for _, m := range masters {
		if err == nil {
			err = ix.accountOf(ctx, m, &a)
		}
	}
	if err != nil {
		return Account{}, fmt.Errorf("schedule: read the account: %w", err)
	}
	return a, nil
}

// accountChunk bounds the partitions of a call that reads accounts: a ms or two.
const accountChunk = 128

// accountOf adds the accounts of a master to a.
func (ix *Index) accountOf(ctx context.Context, m Master, a *Account) error {
	return m.RunOver(ctx, ix.step("account"), accountChunk, nil, func(cmd *redis.Cmd) error {
		reply, err := ReadReply(cmd, 5, 2)
		if err != nil {
			return err
		}
		sums := reply.List(0)
		for i := 0; i+1 < len(sums); i += 2 {
			kind := AccountKind(sums.Text(i))
			if count := a.count(kind); count != nil {
				*count += sums.Int(i + 1)
			}
			if kind == AccountUnsure {
				a.Out.Dead += sums.Int(i + 1)
			}
		}
		there := reply.List(1)
		for i, count := range a.There.counts() {
			if i < len(there) {
				*count += there.Int(i)
			}
		}
		a.Without += reply.Int(2)
		a.Moving += reply.Int(3)
		if began := Millis(reply.Int(4)).Time(); reply.Int(4) > 0 && (a.Since.IsZero() || began.Before(a.Since)) {
			a.Since = began
		}
		for i := 5; i < len(reply); i += 2 {
			a.Differences = append(a.Differences, AccountDifference{keys.Partition(reply.Text(i)), reply.Int(i + 1)})
			a.Difference += reply.Int(i + 1)
		}
		return nil
	})
}

// count returns the number of a kind, or nil for an unknown one. The step adds i, the firings in flight.
func (a *Account) count(kind AccountKind) *int64 {
	return map[AccountKind]*int64{
		"o": &a.Opening, "p": &a.Earlier, "i": &a.InFlight, AccountUnsure: &a.Unsure,
		"s": &a.In.Set, "a": &a.In.Adopted, "r": &a.In.Retried, "n": &a.In.Repeated,
		AccountFired: &a.Out.Fired, "c": &a.Out.Cancelled, "x": &a.Out.Replaced, AccountDead: &a.Out.Dead,
		AccountDropped: &a.Out.Dropped, AccountGuarded: &a.Out.Guarded, AccountSkipped: &a.Out.Skipped,
	}[kind]
}

// counts returns the numbers in the order of the step's reply.
func (t *AccountThere) counts() []*int64 {
	return []*int64{&t.Pending, &t.Held, &t.Owed, &t.Firing, &t.Parked, &t.Contested}
}

// countsText describes a function of a library whose functions count.
const countsText = "counts in the account"

// isCounting reports whether the functions of a library count.
func isCounting(l *redis.Library) bool {
	return slices.ContainsFunc(l.Functions, func(f redis.Function) bool { return f.Description == countsText })
}

// KeepAccount begins the missing accounts of the node's partitions if all timerds at work and the function library
// count. Otherwise it ends their accounts. It returns the differences.
func (n *Node) KeepAccount(ctx context.Context) ([]AccountDifference, error) {
	all, err := n.allCount(ctx)
	if err != nil {
		return nil, fmt.Errorf("schedule: ask which timerds count: %w", err)
	}
	var differences []AccountDifference
	keep := n.schedule.step("account_begin")
	err = n.Master().RunOver(ctx, keep, accountChunk, []any{all}, func(cmd *redis.Cmd) error {
		reply, err := ReadReply(cmd, 1, 2)
		if err != nil {
			return err
		}
		for i := 1; i < len(reply); i += 2 {
			differences = append(differences, AccountDifference{keys.Partition(reply.Text(i)), reply.Int(i + 1)})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("schedule: keep the account: %w", err)
	}
	return differences, nil
}

// allCount reports whether all timerds at work and the node's function library count.
func (n *Node) allCount(ctx context.Context) (bool, error) {
	n.mu.Lock()
	counts := n.libraryCounts
	n.mu.Unlock()
	if !counts {
		return false, nil
	}
	var working *redis.StringSliceCmd
	var said *redis.MapStringStringCmd
	err := n.schedule.Pipelined(ctx, keys.Single, func(pipe redis.Pipeliner) error {
		working = pipe.ZRange(ctx, keys.Single.Members(), 0, -1)
		said = pipe.HGetAll(ctx, keys.Single.About())
		return nil
	})
	for _, id := range working.Val() {
		var about aboutSteps
		_ = json.Unmarshal([]byte(said.Val()[id]), &about) // an unreadable text counts as empty
		if err == nil && !about.Counts {
			return false, nil
		}
	}
	return err == nil, err
}
