// Package history is the record of a torture run, a line of JSON each: the requested operations, the injected faults,
// and the final content of the streams. It is the checker's only input, so a kept file can be judged again.
//
// Times are unix milliseconds. Redis and this program run on the same machine, so their times come from the same wall
// clock, read at different moments.
package history

import "strings"

// Record is one line. Exactly one field is set.
type Record struct {
	Run     *Run     `json:"run,omitempty"`
	Op      *Op      `json:"op,omitempty"`
	Fault   *Fault   `json:"fault,omitempty"`
	Message *Message `json:"message,omitempty"`
	Hold    *HoldOp  `json:"hold,omitempty"`
	Stall   *Stall   `json:"stall,omitempty"`
	Call    *Call    `json:"call,omitempty"`
	// Delivery is a record of the log of deliveries.
	Delivery *Delivery `json:"delivery,omitempty"`
	End      *End      `json:"end,omitempty"`
}

// Run describes the run. It is the first line.
type Run struct {
	Seed    uint64 `json:"seed"`
	Shape   string `json:"shape"`
	Timerds int    `json:"timerds"` // number of timerds, counted from 0
	// Deliverers is the number of timerd deliver processes, counted from 0. Steady are the hosts that never fail, and
	// Fixed is the host in the file of endpoints.
	Deliverers int      `json:"deliverers,omitempty"`
	Steady     []string `json:"steady,omitempty"`
	Fixed      string   `json:"fixed,omitempty"`

	Began int64 `json:"began"`
	Lease int64 `json:"lease"` // the TIMERD_LEASE in ms
	// LeftOut are the kinds of faults that could not be injected.
	LeftOut []string `json:"leftout,omitempty"`
}

// Kind is the kind of a producer's operation.
type Kind string

// The kinds of operations. Set, Hash, Expire and Del are plain commands: timerd learns of them by keyspace events. It
// acknowledges all other kinds itself, but for those on a guard: the key GuardKey of the timer's.
const (
	Set    Kind = "set"          // SET key payload PX ttl
	Hash   Kind = "hash"         // DEL, HSET and PEXPIRE in one transaction
	Expire Kind = "expire"       // PEXPIRE key ttl
	Del    Kind = "del"          // DEL key
	Timer  Kind = "timer_set"    // FCALL timer_set
	Cancel Kind = "timer_cancel" // FCALL timer_cancel
	Retry  Kind = "retry"        // the event published to timers.retry
	Repeat Kind = "timer_repeat" // FCALL timer_repeat EVERY

	SetGuard Kind = "set guard" // SET guard, with PX ttl if that is not 0
	DelGuard Kind = "del guard" // DEL guard
)

// The guards of a timer, by the options of timer_set.
const (
	Unless = "UNLESS"
	If     = "IF"
)

// ModuleKept is the module of the timers guarded by TIMERD_GUARD, unless they have guards of their own.
const ModuleKept = "kept"

// GuardRule returns the TIMERD_GUARD for which GuardKey is the guard of the timers of ModuleKept.
func GuardRule() string { return "*:" + ModuleKept + "=unless %app:paid:%id" }

// GuardKey returns the guard of a timer. It is in the timer's slot, as the ids of guarded timers are hash tags.
func GuardKey(key string) string {
	return App(key) + ":paid:" + key[strings.LastIndexByte(key, ':')+1:]
}

// Outcome is the result of an operation, as known to the producer.
type Outcome string

// The outcomes. Unknown stands for a missing reply, and for an acknowledgement by a master alone if a failover may lose
// the write.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed" // for certain: the server refused it
	Unknown Outcome = "unknown"
)

// Op is one operation on one key. The operations on a key are in their order: one producer does them one after the
// other.
type Op struct {
	Key     string `json:"key"`
	Kind    Kind   `json:"kind"`
	Payload string `json:"payload,omitempty"` // the expected payload of the event, see Digest
	// Body is the value, or Fields the number of fields of the hash, if the timer fires without a payload.
	Body    string `json:"-"`
	Fields  int    `json:"fields,omitempty"`
	Attempt int    `json:"attempt,omitempty"` // of the next firing; of Retry: of the event
	TTL     int64  `json:"ttl,omitempty"`     // in ms; of Retry: Timer-Delay
	At      int64  `json:"at,omitempty"`      // PXAT, instead of TTL
	Max     int    `json:"max,omitempty"`     // of Retry: the event's maxattempts
	EventID string `json:"event,omitempty"`   // of Retry
	Origin  string `json:"origin,omitempty"`  // of Retry: the id of the first event of its timer
	// Postponed is set for a Retry that keeps the attempt.
	Postponed bool   `json:"postponed,omitempty"`
	Status    string `json:"status,omitempty"`  // the reason for a missing payload; of Retry: of the event
	Refused   bool   `json:"refused,omitempty"` // of Retry: timerd refuses it, so it becomes a dead letter
	Late      int64  `json:"late,omitempty"`    // limit on lateness, in ms, its own or its namespace's; 0: none
	Own       bool   `json:"own,omitempty"`     // of Timer: the limit is requested
	Drop      bool   `json:"drop,omitempty"`    // a late timer is dropped, without a dead letter
	// Guard is the guard of the timer, Unless or If; "" for none. It is requested, or that of TIMERD_GUARD.
	Guard    string `json:"guard,omitempty"`
	OwnGuard bool   `json:"ownguard,omitempty"`
	Every    int64  `json:"every,omitempty"`   // of Repeat: the interval in ms, from At on
	Until    int64  `json:"until,omitempty"`   // of Repeat: the last due time
	CatchUp  bool   `json:"catchup,omitempty"` // of Repeat: missed occurrences fire later

	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	Reply   string  `json:"reply,omitempty"`
	Invoked int64   `json:"invoked"` // by this program's clock
	Ended   int64   `json:"ended"`
	Before  int64   `json:"before,omitempty"` // by Redis's clock, read in the same transaction before and after it
	After   int64   `json:"after,omitempty"`
	Due     int64   `json:"due,omitempty"` // by Redis's reply, 0 if there is none
}

// Effect is a fault's effect on a timerd, apart from delays.
type Effect string

// The effects of faults. A deaf timerd may miss keyspace events. A failover may lose unreplicated writes. After KeysGo,
// Redis drops keys before the end of their TTL, and the timers stay. During Carries, keys move to another server, and
// their TTLs stand still. The last three make all timerds deaf.
const (
	Delays   Effect = "delays"
	Deafens  Effect = "deafens"
	Failover Effect = "failover"
	KeysGo   Effect = "keys go"
	Carries  Effect = "carries"
)

// The effects of faults on a timerd deliver. A killed process loses its unwritten records. A stopping process gives up
// on records that NATS does not accept at once.
const (
	Forgets Effect = "forgets"
	Hurries Effect = "hurries"
)

// Changes means another file of endpoints; nothing is lost.
const Changes Effect = "changes"

// Fault is one fault. It lasts from before its first effect until all timerds report that they are ready again.
type Fault struct {
	Kind    string `json:"kind"`
	Effect  Effect `json:"effect"`
	Timerds []int  `json:"timerds"` // the timerds concerned
	// Apps are the apps concerned; none means all. A timerd does not notice that it is deaf to some apps, so no audit
	// follows.
	Apps []string `json:"apps,omitempty"`
	// Slots are the slots concerned; none means all.
	Slots []Slots `json:"slots,omitempty"`
	// Deliverers are the timerd deliver processes concerned. Host is the absent receiver, host:port.
	Deliverers []int  `json:"deliverers,omitempty"`
	Host       string `json:"host,omitempty"`
	// Hold means that a namespace is on hold, and nothing is broken.
	Hold bool `json:"hold,omitempty"`
	// Seen means that the fault was observed, not injected: for example a failover, because servers took each other for
	// dead on a busy machine.
	Seen   bool  `json:"seen,omitempty"`
	From   int64 `json:"from"`
	Healed int64 `json:"healed"`
	// Hearing is the time by which the deaf timerds certainly receive events again.
	Hearing int64 `json:"hearing"`
	// Ready is the time at which all timerds were ready; 0 if they were not ready in time.
	Ready int64 `json:"ready"`
}

// Slots is a range of hash slots of a Redis Cluster.
type Slots struct {
	From int `json:"from"`
	To   int `json:"to"` // included
}

// Stall is a time in which the machine itself was busy: a sleep, or a sync of a private file, took too long.
type Stall struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Message is one message of the stream of firings or of the stream of dead letters.
type Message struct {
	Stream string `json:"stream"` // Fired or Dead
	Seq    uint64 `json:"seq"`
	Stored int64  `json:"stored"`          // by JetStream
	ID     string `json:"id"`              // of the message, its Nats-Msg-Id
	Batch  bool   `json:"batch,omitempty"` // it was published together with others
	Fault  string `json:"fault,omitempty"` // the reason why it is no event; then the rest is empty

	Key     string `json:"key,omitempty"`
	EventID string `json:"event,omitempty"`
	Origin  string `json:"origin,omitempty"` // the id of its timer's first event; empty for that one
	Time    int64  `json:"time,omitempty"`
	Due     int64  `json:"due,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Max     int    `json:"max,omitempty"` // the most attempts
	Trigger string `json:"trigger,omitempty"`
	Payload string `json:"payload,omitempty"` // see Digest
	Status  string `json:"status,omitempty"`  // the reason for a missing payload
	Reason  string `json:"reason,omitempty"`  // of a dead letter
	// Occurrence numbers the firings of a repeating timer, from 1.
	Occurrence int64 `json:"occurrence,omitempty"`
}

// Streams of a Message.
const (
	FiredStream = "TIMERS"
	DeadStream  = "TIMERS_DEAD"
	// DeliveryStream is the stream of the Deliveries.
	DeliveryStream = "TIMERS_DELIVERY"
)

// End is the last line.
type End struct {
	At      int64 `json:"at"`      // the time at which the streams were read
	Drained bool  `json:"drained"` // the schedule was empty then
	// Account is the complaint of timerd account; "" if the account differs in nothing.
	Account string `json:"account,omitempty"`
}
