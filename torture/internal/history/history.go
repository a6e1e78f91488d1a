// Package history is what a torture run writes down, one JSON record on a line: what
// was asked for, what was broken, and what the streams held in the end. It is all
// that the checker knows, so a kept file can be judged again.
//
// Times are unix milliseconds. Redis's clock and this program's are those of one
// machine, so they are the same wall clock read at different moments.
package history

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

// Run says what was run. It is the first line.
type Run struct {
	Seed    uint64 `json:"seed"`
	Shape   string `json:"shape"`
	Timerds int    `json:"timerds"` // how many, numbered from 0
	// Deliverers are how many timerd deliver there are, numbered from 0, Steady those of their hosts that never fail, and
	// Fixed the one that is in the file of endpoints.
	Deliverers int      `json:"deliverers,omitempty"`
	Steady     []string `json:"steady,omitempty"`
	Fixed      string   `json:"fixed,omitempty"`

	Began int64 `json:"began"`
	Lease int64 `json:"lease"` // the TIMERD_LEASE in ms
	// LeftOut are the kinds of faults that could not be injected.
	LeftOut []string `json:"leftout,omitempty"`
}

// Kind is what a producer did.
type Kind string

// What producers do. Set, Hash, Expire and Del are plain commands that timerd hears
// of by keyspace events; the others are acknowledged by timerd's own means.
const (
	Set    Kind = "set"          // SET key payload PX ttl
	Hash   Kind = "hash"         // DEL, HSET and PEXPIRE in one transaction
	Expire Kind = "expire"       // PEXPIRE key ttl
	Del    Kind = "del"          // DEL key
	Timer  Kind = "timer_set"    // FCALL timer_set
	Cancel Kind = "timer_cancel" // FCALL timer_cancel
	Retry  Kind = "retry"        // the event published to timers.retry
	Repeat Kind = "timer_repeat" // FCALL timer_repeat EVERY
)

// Outcome is what the producer knows of its operation.
type Outcome string

// What an operation came to. Unknown covers every reply that did not come, and every
// acknowledgement by a master alone where a failover may lose it.
const (
	OK      Outcome = "ok"
	Failed  Outcome = "failed" // for certain: the server refused it
	Unknown Outcome = "unknown"
)

// Op is one operation on one key. The operations on a key are written in their
// order: a producer does them one after the other, and no two producers share a key.
type Op struct {
	Key     string `json:"key"`
	Kind    Kind   `json:"kind"`
	Payload string `json:"payload,omitempty"` // that the timer is to fire with, see Digest
	// Body is the value, and Fields are how many fields the hash has, of a timer that fires without a payload.
	Body    string `json:"-"`
	Fields  int    `json:"fields,omitempty"`
	Attempt int    `json:"attempt,omitempty"` // that it is to fire as; of Retry: that of the event
	TTL     int64  `json:"ttl,omitempty"`     // in ms; of Retry: Timer-Delay
	At      int64  `json:"at,omitempty"`      // asked for as PXAT, instead of TTL
	Max     int    `json:"max,omitempty"`     // of Retry: the event's maxattempts
	EventID string `json:"event,omitempty"`   // of Retry
	Origin  string `json:"origin,omitempty"`  // of Retry: the id of the first event of its timer
	// Postponed says of a Retry that it keeps the attempt.
	Postponed bool   `json:"postponed,omitempty"`
	Status    string `json:"status,omitempty"`  // why it fires without a payload; of Retry: why the event has none
	Refused   bool   `json:"refused,omitempty"` // of Retry: it cannot be done, and becomes a dead letter
	Late      int64  `json:"late,omitempty"`    // how late it may fire, in ms, by its own limit or that of its namespace; 0: however late
	Own       bool   `json:"own,omitempty"`     // of Timer: the limit is asked for
	Drop      bool   `json:"drop,omitempty"`    // later than that it is forgotten, instead of becoming a dead letter
	Every     int64  `json:"every,omitempty"`   // of Repeat: the interval in ms, which counts from At
	Until     int64  `json:"until,omitempty"`   // of Repeat: when it is due for the last time
	CatchUp   bool   `json:"catchup,omitempty"` // of Repeat: all that is missed is made up for

	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	Reply   string  `json:"reply,omitempty"`
	Invoked int64   `json:"invoked"` // by this program's clock
	Ended   int64   `json:"ended"`
	Before  int64   `json:"before,omitempty"` // by Redis's, in the same transaction, before and after
	After   int64   `json:"after,omitempty"`
	Due     int64   `json:"due,omitempty"` // as Redis told it, 0 if there is none
}

// Effect is what a fault takes from a timerd, apart from time.
type Effect string

// What faults do. Deaf timerds may miss keyspace events. A failover may lose what
// was not replicated, and makes all timerds deaf. Where keys go away, timers stay: Redis
// drops keys that have a TTL before it runs out, and all timerds are deaf. Where keys are
// carried to another server, the TTL stands still meanwhile, and all timerds are deaf.
const (
	Delays   Effect = "delays"
	Deafens  Effect = "deafens"
	Failover Effect = "failover"
	KeysGo   Effect = "keys go"
	Carries  Effect = "carries"
)

// What is done to a timerd deliver. One that is killed forgets what it was about to write down. One that is to stop gives
// up on what NATS does not take at once.
const (
	Forgets Effect = "forgets"
	Hurries Effect = "hurries"
)

// Changes is the effect of another file: it takes nothing from anybody.
const Changes Effect = "changes"

// Fault is one fault, from before its first effect until all timerds said that they
// are ready again.
type Fault struct {
	Kind    string `json:"kind"`
	Effect  Effect `json:"effect"`
	Timerds []int  `json:"timerds"` // that it concerns
	// Apps are those whose timers it concerns; none: all. Timerds that are deaf to some apps do not notice,
	// so no audit comes after it.
	Apps []string `json:"apps,omitempty"`
	// Slots are those of the keys whose timers it concerns; none: all.
	Slots []Slots `json:"slots,omitempty"`
	// Deliverers are those timerd deliver that it concerns, and Host the receiver, host:port, that is away.
	Deliverers []int  `json:"deliverers,omitempty"`
	Host       string `json:"host,omitempty"`
	// Hold says that nothing is broken: a namespace is held.
	Hold bool `json:"hold,omitempty"`
	// Seen says that nobody injected it: it was seen to happen, as a failover by
	// servers that took each other for dead on a busy machine.
	Seen   bool  `json:"seen,omitempty"`
	From   int64 `json:"from"`
	Healed int64 `json:"healed"`
	// Hearing is when the timerds that it deafened hear again for certain.
	Hearing int64 `json:"hearing"`
	// Ready is when they were all ready, 0 if they were not in the time they had.
	Ready int64 `json:"ready"`
}

// Slots are hash slots of a Redis Cluster that follow each other.
type Slots struct {
	From int `json:"from"`
	To   int `json:"to"` // included
}

// Stall is a time in which the machine itself was busy: a sleep, or a sync of a file that nobody else has, took too long.
type Stall struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// Message is one message of the stream of firings or of that of dead letters.
type Message struct {
	Stream string `json:"stream"` // Fired or Dead
	Seq    uint64 `json:"seq"`
	Stored int64  `json:"stored"`          // by JetStream
	ID     string `json:"id"`              // of the message, its Nats-Msg-Id
	Batch  bool   `json:"batch,omitempty"` // it was published together with others
	Fault  string `json:"fault,omitempty"` // why it cannot be read as an event; then what follows is empty

	Key     string `json:"key,omitempty"`
	EventID string `json:"event,omitempty"`
	Origin  string `json:"origin,omitempty"` // the id of the first event of its timer, of all others
	Time    int64  `json:"time,omitempty"`
	Due     int64  `json:"due,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	Max     int    `json:"max,omitempty"` // how many attempts there are
	Trigger string `json:"trigger,omitempty"`
	Payload string `json:"payload,omitempty"` // see Digest
	Status  string `json:"status,omitempty"`  // why there is no payload
	Reason  string `json:"reason,omitempty"`  // of a dead letter
	// Occurrence counts the firings of a timer that repeats, from 1 on.
	Occurrence int64 `json:"occurrence,omitempty"`
}

// Streams of a Message.
const (
	FiredStream = "TIMERS"
	DeadStream  = "TIMERS_DEAD"
	// DeliveryStream is the one of each Delivery.
	DeliveryStream = "TIMERS_DELIVERY"
)

// End is the last line.
type End struct {
	At      int64 `json:"at"`      // when the streams were read
	Drained bool  `json:"drained"` // the schedule was empty then
}
