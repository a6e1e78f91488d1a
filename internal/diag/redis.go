package diag

import (
	"strconv"
	"strings"
)

// OutOfMemory is the [Refused.Word] of a Redis out of memory.
const OutOfMemory = "OOM command not allowed"

// The errors of a Valkey without the module for Lua: for a script, and for a library.
const (
	noEngineForScript  = "Could not find scripting engine 'lua'"
	noEngineForLibrary = "Engine 'lua' not found"
)

// Info is a reply of Redis to INFO, by field.
type Info map[string]string

// ParseInfo reads a reply to INFO.
func ParseInfo(reply string) Info {
	fields := Info{}
	for line := range strings.Lines(reply) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// Number returns a field as a number, 0 if it is none.
func (i Info) Number(name string) int64 {
	n, _ := strconv.ParseInt(i[name], 10, 64)
	return n
}

// Refused is the reason for which Redis refuses a command, and the fix.
type Refused struct {
	Fault
	Word string // the word of the server's error that identifies it
}

// refusal is one kind of refusal by a Redis server.
type refusal struct {
	word string // in the server's error
	what string
	fix  string
}

// refusals returns the refusals that have a cause of their own, for any command. The first word in the server's text
// decides.
func refusals() []refusal {
	const (
		credentials = "correct the user, the password or the database in TIMERD_REDIS_URL"
		noLua       = "it has no Lua, and so neither scripts nor functions"
		loadLua     = "load its module: give valkey.conf the line `loadmodule /path/of/libvalkeylua.so` and restart " +
			"Valkey; " +
			"the path: find / -name libvalkeylua.so (in Alpine, the package valkey-lua has it)"
	)
	return []refusal{
		{"MISCONF Errors writing to the AOF file", "it cannot write to its disk and refuses every write",
			"make room on the disk of its directory, and it takes writes again by itself; the directory: redis-cli " +
				"CONFIG GET dir"},
		{"MISCONF", "it cannot save its snapshot and refuses every write",
			"make room on the disk and its directory writable again, or restart Redis with another directory, then: " +
				"redis-cli BGSAVE"},
		{OutOfMemory, "it is out of memory and refuses every write that needs memory",
			"raise maxmemory, here and in redis.conf, as far as the machine has memory; its memory: redis-cli INFO " +
				"memory"},
		{"READONLY", "it is a replica and takes no writes",
			"let TIMERD_REDIS_URL name the master, or use TIMERD_REDIS_MODE=sentinel; or, to make this one the " +
				"master: redis-cli REPLICAOF NO ONE"},
		{"LOADING", "it is loading its data", "wait until it has; how far it is: redis-cli INFO persistence"},
		{"MASTERDOWN", "it is a replica, and its master is away",
			"bring the master back; or, to make this one the master: redis-cli REPLICAOF NO ONE"},
		{"NOREPLICAS", "it has too few replicas and refuses every write",
			"bring its replicas back; or, where a failover may lose timers until they are: redis-cli CONFIG SET " +
				"min-replicas-to-write 0"},
		{"BUSY ", "it is busy with a long script or function",
			"wait for the script, or end it before it has written anything (SHUTDOWN NOSAVE loses timers): redis-cli " +
				"SCRIPT KILL; or, if it is a function: redis-cli FUNCTION KILL"},
		{"WRONGPASS", "it refuses the user or the password", credentials},
		{"NOAUTH", "it wants a user and a password", credentials},
		{"DENIED", "it is in protected mode and refuses clients of other hosts",
			"give it a password, or let it bind an address of a network that is protected"},
		{noEngineForScript, noLua, loadLua},
		{noEngineForLibrary, noLua, loadLua},
		{"max number of clients", "it has reached maxclients and refuses more clients",
			"stop a client that is not needed, so that another one gets in, then raise maxclients, here and in " +
				"redis.conf: redis-cli CONFIG SET maxclients 20000"},
	}
}

// IsPermanent reports whether the refusal is permanent, because the server lacks a feature that timerd needs. r may be
// nil.
func (r *Refused) IsPermanent() bool {
	return r != nil && (r.Word == noEngineForScript || r.Word == noEngineForLibrary)
}

// Refusal returns the reason for which Redis refuses commands, judged by the error's text. It returns nil if Redis does
// not refuse, or refuses only this one command.
func Refusal(err error) *Refused {
	if err == nil {
		return nil
	}
	said := err.Error()
	var found *Refused
	first := len(said)
	for _, r := range refusals() {
		if at := strings.Index(said, r.word); at >= 0 && at < first {
			first = at
			sentence, _, _ := strings.Cut(said[at:], ". ")
			found = &Refused{Fault{What: r.what + ": " + strings.TrimSuffix(sentence, "."), Remedy: r.fix, Err: err},
				r.word}
		}
	}
	return found
}
