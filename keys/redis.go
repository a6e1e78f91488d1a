package keys

import (
	"bytes"
	"iter"
	"strconv"
	"strings"
)

// Redis names that hold no partition.
const (
	// WakeChannel is the function library's channel: it makes timers set through the library punctual without keyspace
	// events. A message is one of three: the tag of a partition and the due time in unix ms of a timer set there (see
	// ParseWake); AppMessage and an app, for the first timer of the app; ClaimedMessage and keys. Every set timer is
	// announced, followed by its database and key, so that no timerd looks up the resulting events: in a cluster on
	// ClaimedChannel, and here only if that has no subscriber and the timer became the first of its partition. All
	// databases of a server share the channel.
	WakeChannel = "timerd:wake"
	// AppMessage precedes the app in a message on WakeChannel.
	AppMessage = "app "
	// CanaryPrefix begins the keys with which a timerd checks that it still receives keyspace events. They have three
	// parts, so no namespace takes them for timers.
	CanaryPrefix = "timerd:canary:"
	// Installation is the key that holds the identity of the installation of a Redis. It has three parts, like
	// canaries. In a cluster it is in one slot, like any key.
	Installation = "timerd:installation:id"
	// VirtualInstallation begins the identity of an installation with a virtual clock: that of timerd dev --virtual.
	VirtualInstallation = "virtual-"
)

// IsVirtual reports whether an installation has a virtual clock, by its identity.
func IsVirtual(id string) bool { return strings.HasPrefix(id, VirtualInstallation) }

// InstallationProbe returns the key that a timerd sets for a moment, so that its installation's other timerds can find
// out whether they serve the same Redis. nonce must hold no colon.
func InstallationProbe(nonce string) string { return "timerd:installation-probe:" + nonce }

// CanaryKey returns the nth canary of a timerd, by its instance id, on the server of a partition: a key whose events
// show that the timerd's subscription works.
func CanaryKey(p Partition, instance string, n int) string {
	return CanaryPrefix + "{" + string(p) + "}" + instance + "-" + strconv.Itoa(n)
}

// MarkKey returns the key of the timerds' mark on the server with the given run id.
func MarkKey(run string) string { return "timerd:mark:" + run }

// ClaimedMessage precedes, in a message on WakeChannel, the keys whose timers were claimed in a database. The timerds
// then need not look up older events of these keys (see ParseClaimed).
func ClaimedMessage(db int) string { return "claimed " + strconv.Itoa(db) + " " }

// NextMessage precedes the next due times of the claimed partitions, in a message on ClaimedChannel after one with
// ClaimedMessage (see ParseNext). It is sent only if several timerds receive it.
func NextMessage(db int) string { return "next " + strconv.Itoa(db) + " " }

// ParseNext reads the text after NextMessage: the time of the claim, in unix ms, and for each partition its next due
// time, or -1 if it has none. It ends at the first malformed partition; ok is false if the time of the claim is
// malformed.
func ParseNext(message string) (at int64, next iter.Seq2[Partition, int64], ok bool) {
	claimed, rest, _ := strings.Cut(message, " ")
	at, err := strconv.ParseInt(claimed, 10, 64)
	return at, func(yield func(Partition, int64) bool) {
		for rest := rest; rest != ""; {
			var tag, due string
			tag, rest, _ = strings.Cut(rest, " ")
			due, rest, _ = strings.Cut(rest, " ")
			n, err := strconv.ParseInt(due, 10, 64)
			if err != nil || !yield(partitionOf(tag), n) {
				return
			}
		}
	}, err == nil
}

// Wake is a due time from a message on WakeChannel.
type Wake struct {
	Partition Partition
	Due       int64 // in unix ms
	// Key is the key of the set timer, and DB its database. Key is empty if the message does not have it.
	Key string
	DB  int
}

// ParseWake reads a message on WakeChannel that announces a due time.
func ParseWake(message string) (w Wake, ok bool) {
	tag, rest, _ := strings.Cut(message, " ")
	due, rest, more := strings.Cut(rest, " ")
	w.Partition = partitionOf(tag)
	var err error
	if w.Due, err = strconv.ParseInt(due, 10, 64); err == nil && more {
		var db string
		db, w.Key, _ = strings.Cut(rest, " ")
		w.DB, err = strconv.Atoi(db)
	}
	return w, err == nil
}

// partitionOf returns the partition in a message, as a copy: it may outlive the message by far.
func partitionOf(tag string) Partition { return Partition(strings.Clone(tag)) }

// ClaimedChannel is the sharded channel that announces set and claimed timers to the timerds receiving a master's
// events: the channel of the first of its partitions. In a single Redis it is WakeChannel.
func ClaimedChannel(p Partition) string {
	if p == Single {
		return WakeChannel
	}
	return claimedPrefix + "{" + string(p) + "}"
}

const claimedPrefix = "timerd:claimed:"

// IsClaimedChannel reports whether a channel is the ClaimedChannel of any partition.
func IsClaimedChannel(channel []byte) bool { return bytes.HasPrefix(channel, []byte(claimedPrefix)) }

// ParseClaimed reads the text after ClaimedMessage: keys, each preceded by its length. It ends at the first malformed
// one. The keys share the message's memory.
func ParseClaimed(message []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(message) > 0 {
			length, rest, ok := bytes.Cut(message, []byte(":"))
			n, err := strconv.Atoi(string(length))
			if !ok || err != nil || n < 0 || n > len(rest) || !yield(rest[:n]) {
				return
			}
			message = rest[n:]
		}
	}
}

// Partition is the common hash tag of the index keys of one part of the schedule, so that one script can use all of
// them. These keys have three parts, so they are never timer keys.
type Partition string

// Single is the only partition of a Redis that is not a cluster. In a cluster it holds the data about all timers.
const Single Partition = "t"

// Prefix returns the common prefix of the partition's index keys. No key has exactly this name. So if a script names it
// as a key while the partition's slot is moving, and neither server has the whole partition, the cluster refuses the
// script.
func (p Partition) Prefix() string { return "timerd:{" + string(p) + "}:" }

func (p Partition) key(name string) string { return p.Prefix() + name }

// Due names the sorted set of pending timers, scored by due time in unix ms.
func (p Partition) Due() string { return p.key("due") }

// Database names the key with the number of the partition's database.
func (p Partition) Database() string { return p.key("database") }

// Data names the hash of the pending timers' attempts, flags and payloads.
func (p Partition) Data() string { return p.key("data") }

// Firing names the sorted set of owed or claimed firings, scored by the end of their lease in unix ms.
func (p Partition) Firing() string { return p.key("firing") }

// FiringData names the hash of the flags and payloads of the firings in Firing.
func (p Partition) FiringData() string { return p.key("firingdata") }

// Fired names the sorted set of tombstones: timers lately fired, cancelled after their due time, or retried, scored by
// the time of that.
func (p Partition) Fired() string { return p.key("fired") }

// Retried names the sorted set of the ids of events whose retry was set, scored by the time of that.
func (p Partition) Retried() string { return p.key("retried") }

// Aside names the sorted set of the pending timers that are parked because of unreadable keys, scored by due time in
// unix ms.
func (p Partition) Aside() string { return p.key("aside") }

// Counted names the record of the number of timers on the partition's server, which reveals a loss of data.
func (p Partition) Counted() string { return p.key("counted") }

// Refused names the sorted set of the firings refused by NATS, scored by due time in unix ms.
func (p Partition) Refused() string { return p.key("refused") }

// Owed names the sorted set of the unclaimed firings, by key.
func (p Partition) Owed() string { return p.key("owed") }

// Beside names the sorted set of the pending timers whose key has a newer timer, by key.
func (p Partition) Beside() string { return p.key("beside") }

// Repeat names the sorted set of the keys whose timers repeat, scored by the serial of each repetition.
func (p Partition) Repeat() string { return p.key("repeat") }

// Holds names the hash of the holds, by namespace.
func (p Partition) Holds() string { return p.key("holds") }

// Resuming names the key of the timerd that is carrying out resumes of holds at the moment.
func (p Partition) Resuming() string { return p.key("resuming") }

// Reconciling names the key of the timerd that is comparing a restored Redis with the streams at the moment.
func (p Partition) Reconciling() string { return p.key("reconciling") }

// Known names the sorted set of the apps with timers set through the function library or by a retry.
func (p Partition) Known() string { return p.key("known") }

// Members names the sorted set of living timerds, scored by their last sign of life in unix ms.
func (p Partition) Members() string { return p.key("members") }

// Silent names the sorted set of the timerds that fell silent without ending in order, scored like Members.
func (p Partition) Silent() string { return p.key("silent") }

// Unable names the sorted set of living timerds unable to publish events, scored like Members.
func (p Partition) Unable() string { return p.key("unable") }

// Hearing names the sorted set of timerds that receive the events of the partition's server, scored by their last proof
// of it in unix ms.
func (p Partition) Hearing() string { return p.key("hearing") }

// About names the hash of the timerds' descriptions of themselves, by instance id.
func (p Partition) About() string { return p.key("about") }

// Counts names the hash of the timerds' counts since their starts, by instance id.
func (p Partition) Counts() string { return p.key("counts") }

// Account names the sorted set of how many timers have entered and left, by kind.
func (p Partition) Account() string { return p.key("account") }

// Audits names the hash of the timerds' last audit reports of each node.
func (p Partition) Audits() string { return p.key("audits") }

// Asked names the hash of the audits requested by commands, with their progress.
func (p Partition) Asked() string { return p.key("asked") }

// Ahead names the string with the lead of a virtual clock over Redis's, in ms. Only timerd dev --virtual has it.
func (p Partition) Ahead() string { return p.key("ahead") }

// Calls names the sorted set of the function library's functions, scored by the number of counted calls.
func (p Partition) Calls() string { return p.key("calls") }

// ExpiredChannel returns the channel of the expired events of a database.
func ExpiredChannel(db int) string { return "__keyevent@" + strconv.Itoa(db) + "__:expired" }

// KeyspacePrefix returns the text before the key in the keyspace channels of a database.
func KeyspacePrefix(db int) string { return "__keyspace@" + strconv.Itoa(db) + "__:" }

// KeyspacePattern returns the channel pattern of the keyspace events of a namespace. It may match other keys too, like
// Namespace.Glob.
func KeyspacePattern(db int, n Namespace) string { return KeyspacePrefix(db) + n.Glob() }
