package schedule

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// lua has the steps, each a file; the functions that clients call; and in lib the rooms that both use. The first line
// of a step has its flags. Settling and claiming have allow-oom, as they free memory. virtual has the two rooms that
// differ for a virtual clock, and the scripts for it.
//
//go:embed lua/*.lua lua/lib/*.lua lua/steps/*.lua lua/functions/*.lua lua/virtual/*.lua
var lua embed.FS

// LibraryName is the name of the function library in Redis that clients call.
const LibraryName = "timerd"

// libraryFile begins each library.
const libraryFile = "lua/library.lua"

// limitText describes timer_set in the list of functions. So the payload limit is in Redis, where every timerd reads
// it.
const limitText = "sets a timer with a payload of up to %d bytes"

// wakeWithin bounds the distance of a timer that the function library announces in a cluster, where a message goes to
// every node. A sweep finds others before they are due, whatever the sweep interval.
const wakeWithin = 2*time.Minute + 10*time.Second

// scripts holds the text that Redis loads.
type scripts struct {
	maxPayload int // in bytes
	rooms      *rooms
	library    func() string      // the source of the library that clients call
	steps      func() stepLibrary // made when first asked for
	known      sync.Map           // the scripts by their names, as far as they were asked for
}

// stepLibrary is the library of the steps. Its name has the number of the database and a hash of the text: so timerds
// of several versions, payload limits and databases each have their own.
type stepLibrary struct{ name, text string }

// stepHashBytes is the length of the hash in the names of the step libraries; each byte takes two letters.
const stepHashBytes = 6

// stepLibraryPrefix begins the names of the step libraries of a database.
func stepLibraryPrefix(db int) string { return fmt.Sprintf("%s_%d_", LibraryName, db) }

// isStepLibrary reports whether a library has a name as timerd gives to the steps of a database.
func isStepLibrary(name string, db int) bool {
	hash, ok := strings.CutPrefix(name, stepLibraryPrefix(db))
	return ok && len(hash) == 2*stepHashBytes && strings.Trim(hash, "0123456789abcdef") == ""
}

// function returns the name of a step's function.
func (l stepLibrary) function(step string) string { return l.name + "_" + step }

// newScripts returns the libraries and the scripts. maxPayload is in bytes, and db the number of the database, for
// the steps alone: all databases share the library that clients call.
func newScripts(maxPayload int, cluster bool, db int) *scripts {
	return makeScripts(maxPayload, cluster, db, nil)
}

// newVirtualScripts is newScripts for a virtual clock, on a single Redis.
func newVirtualScripts(maxPayload, db int) *scripts {
	return makeScripts(maxPayload, false, db, []string{"clock", "ttl"})
}

// makeScripts returns the libraries and scripts; virtual names their rooms for a virtual clock.
func makeScripts(maxPayload int, cluster bool, db int, virtual []string) *scripts {
	partition, within, tell := "partition_single", int64(math.MaxInt64), "PUBLISH"
	if cluster {
		partition, within, tell = "partition_cluster", wakeWithin.Milliseconds(), "SPUBLISH"
	}
	given := append(constants(maxPayload, within),
		declared(fmt.Sprintf("local CLAIMED, NEXT = '%s', '%s'\n", keys.ClaimedMessage(db), keys.NextMessage(db))),
		declared(fmt.Sprintf("local CLUSTER, TELL = %t, '%s'\n", cluster, tell)))
	r, err := newRooms(lua, "lua/lib", given, map[string]string{"partition": partition})
	if err != nil {
		panic(fmt.Sprintf("schedule: %v", err)) // it is not embedded: every test of this package finds it
	}
	for _, name := range virtual {
		text := mustRead(lua, "lua/virtual/"+name+".lua")
		r.all[name] = room{text, luaWords(text)}
	}
	s := &scripts{maxPayload: maxPayload, rooms: r}
	s.library = sync.OnceValue(s.makeLibrary)
	s.steps = sync.OnceValue(func() stepLibrary { return s.makeSteps(stepLibraryPrefix(db)) })
	return s
}

// makeLibrary assembles the library that clients call.
func (s *scripts) makeLibrary() string {
	var b strings.Builder
	for _, name := range filesIn(lua, "lua/functions") {
		b.WriteString("do\n" + mustRead(lua, name) + "end\n")
	}
	return s.rooms.assemble("#!lua name="+LibraryName+"\n"+mustRead(lua, libraryFile), b.String())
}

// makeSteps assembles the library of the steps.
func (s *scripts) makeSteps(prefix string) stepLibrary {
	var b, register strings.Builder
	b.WriteString("local steps = {}\n")
	for _, file := range filesIn(lua, "lua/steps") {
		head, text := cutHead(mustRead(lua, file))
		name := strings.TrimSuffix(path.Base(file), ".lua")
		b.WriteString("do\n" + text + "end\n")
		const function = "redis.register_function { function_name = LIBRARY .. '_%s', " +
			"callback = bound(steps.%[1]s), flags = {%s} }\n"
		fmt.Fprintf(&register, function, name, flagsOf(head))
	}
	text := s.rooms.assemble(mustRead(lua, libraryFile), b.String()) + register.String()
	hash := sha256.Sum256([]byte(text))
	name := fmt.Sprintf("%s%x", prefix, hash[:stepHashBytes])
	return stepLibrary{name: name, text: fmt.Sprintf("#!lua name=%s\nlocal LIBRARY = '%[1]s'\n%s", name, text)}
}

// flagsOf returns the flags in the first line of a script as a function has them.
func flagsOf(head string) string {
	_, flags, some := strings.Cut(strings.TrimSpace(head), "flags=")
	if !some {
		return ""
	}
	return "'" + strings.ReplaceAll(flags, ",", "', '") + "'"
}

// step returns a step of this package as a script, by the name of its file.
func (s *scripts) step(name string) *redis.Script {
	return s.get(name, func() string {
		head, text := cutHead(mustRead(lua, "lua/steps/"+name+".lua"))
		return s.rooms.assemble(head, "local steps = {}\n"+text+"return steps."+name+"(KEYS, ARGV)\n")
	})
}

// read returns a script in a file of another package.
func (s *scripts) read(files fs.FS, name string) *redis.Script {
	return s.get(name, func() string {
		head, text := cutHead(mustRead(files, "lua/"+name+".lua"))
		return s.rooms.assemble(head, text)
	})
}

// get returns one of the known scripts, or the one that text returns.
func (s *scripts) get(name string, text func() string) *redis.Script {
	found, ok := s.known.Load(name)
	if !ok {
		found, _ = s.known.LoadOrStore(name, redis.NewScript(text()))
	}
	return found.(*redis.Script) //nolint:forcetypeassert // nothing else is there
}

// cutHead cuts the first line off a script, which is for Redis.
func cutHead(text string) (head, rest string) {
	head, rest, _ = strings.Cut(text, "\n")
	return head + "\n", rest
}

// mustRead reads a file that is embedded: a test reads all of them.
func mustRead(files fs.FS, name string) string {
	text, err := readLua(files, name)
	if err != nil {
		panic(fmt.Sprintf("schedule: %v", err))
	}
	return text
}

// filesIn returns the paths of the files in an embedded folder, in their order.
func filesIn(files fs.FS, folder string) []string {
	names, err := fs.Glob(files, folder+"/*.lua")
	if err != nil {
		panic(fmt.Sprintf("schedule: %s: %v", folder, err))
	}
	return names
}

// declared returns a line of Lua that declares local variables.
func declared(line string) constant {
	names, _, _ := strings.Cut(strings.TrimPrefix(line, "local "), " = ")
	return constant{strings.Split(names, ", "), line}
}

// constants declares values of Go that Lua uses:
//
//	PREFIX, SUFFIX       what stands before and after the hash tag in a partition's prefix
//	SINGLE               the hash tag of a Redis that is not a cluster
//	LATEST               the latest due time, in unix ms
//	WAKE, WAKE_WITHIN    the channel of the wake messages, and how far off a timer may be to be announced, in ms
//	MAX_PAYLOAD, LIMIT   the payload limit in bytes, and the text that says so in the list of functions
//	COUNTS               the text there of a library that counts in the account
//	HELD, HELD_TEXT      the score in firing of a held timer, less its due time
//	FREED, PAUSED, PERHAPS  the fractions of scores (lib/scores.lua)
//	CLAIMED, NEXT        the beginnings of the messages about claimed timers, and about next due times
//	CLUSTER, TELL        true in a cluster, and the command that sends such messages
//	TAG_LETTERS, TAG_FIRST, TAG_BASE, TAG_BITS  how a slot's hash tag is computed, as in keys/slot.go
func constants(maxPayload int, wakeWithin int64) []constant {
	prefix, suffix, _ := strings.Cut(keys.Partition("/").Prefix(), "/")
	bits := strings.Trim(strings.ReplaceAll(fmt.Sprint(keys.TagBits()), " ", ","), "[]")
	return []constant{
		declared(fmt.Sprintf("local PREFIX, SUFFIX, SINGLE = '%s', '%s', '%s'\n", prefix, suffix, keys.Single)),
		declared(fmt.Sprintf("local LATEST = %d\n", Latest)),
		declared(fmt.Sprintf("local WAKE, WAKE_WITHIN = '%s', %d\n", keys.WakeChannel, wakeWithin)),
		declared(fmt.Sprintf("local MAX_PAYLOAD, LIMIT = %d, '%s'\n", maxPayload, fmt.Sprintf(limitText, maxPayload))),
		declared(fmt.Sprintf("local COUNTS = '%s'\n", countsText)),
		declared(fmt.Sprintf("local HELD, HELD_TEXT, FREED, PAUSED, PERHAPS = %d, '%[1]d', %g, %g, %g\n", heldScore,
			partFreed, partPaused, partPerhaps)),
		declared(fmt.Sprintf("local TAG_LETTERS, TAG_FIRST, TAG_BASE, TAG_BITS = %d, %d, %d, {%s}\n",
			keys.TagLetters, keys.TagFirst, keys.TagBase, bits)),
	}
}
