package schedule

import (
	"embed"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

// lua has the steps, each a script, the functions of the library, and in lib what these include. A file has no part that it does
// not need: Redis makes the functions of all parts anew each time it runs a script, which takes longer than the commands of most.
// Settling and claiming have the flag allow-oom, as they free what Redis is out of.
//
//go:embed lua/lib/*.lua lua/steps/*.lua lua/functions/*.lua
var lua embed.FS

// LibraryName is the name of the function library in Redis.
const LibraryName = "timerd"

// limitText describes timer_set in the list of functions. So the payload limit is in Redis, where every timerd reads it.
const limitText = "sets a timer with a payload of up to %d bytes"

// wakeWithin is how far off a timer of a cluster may be for the function library to announce it: there a message goes
// to every node. What is further off is found by a sweep before it is due, whatever the sweep interval.
const wakeWithin = 2*time.Minute + 10*time.Second

// scripts holds what Redis loads.
type scripts struct {
	maxPayload  int    // in bytes
	library     string // source of the function library
	parts       parts
	steps, read sync.Map // the scripts by their names, as far as they were asked for: of this package, and of those that only read
}

// newScripts returns the library and the scripts. maxPayload is in bytes, and db the number of the database, of which only the
// claims know: the library is that of all databases.
func newScripts(maxPayload int, cluster bool, db int) *scripts {
	partition, within, tell := "partition_single", int64(math.MaxInt64), "PUBLISH"
	if cluster {
		partition, within, tell = "partition_cluster", wakeWithin.Milliseconds(), "SPUBLISH"
	}
	p := parts{files: lua, in: []string{"lua/lib", "lua/functions"}, given: constants(maxPayload, within)}
	p.given["claimed"] = fmt.Sprintf("local CLAIMED, NEXT, TELL, CLUSTER = '%s', '%s', '%s', %t\n", keys.ClaimedMessage(db), keys.NextMessage(db), tell, cluster)
	text, err := p.read(partition)
	if err != nil {
		panic(err) // it is not embedded: every test of this package finds it
	}
	p.given["partition"] = text
	return &scripts{maxPayload: maxPayload, parts: p, library: p.load(lua, "lua/functions/library.lua")}
}

// step returns a script of this package by the name of its file.
func (s *scripts) step(name string) *redis.Script { return s.get(&s.steps, lua, "lua/steps/", name) }

// get returns one of the known scripts, or the one in a file.
func (s *scripts) get(known *sync.Map, files fs.FS, folder, name string) *redis.Script {
	found, ok := known.Load(name)
	if !ok {
		found, _ = known.LoadOrStore(name, redis.NewScript(s.parts.load(files, folder+name+".lua")))
	}
	return found.(*redis.Script) //nolint:forcetypeassert // nothing else is there
}

// load puts a script together.
func (p parts) load(files fs.FS, path string) string {
	source, err := fs.ReadFile(files, path)
	var text string
	if err == nil {
		text, err = p.assemble(string(source))
	}
	if err != nil {
		panic(fmt.Sprintf("schedule: %s: %v", path, err)) // a test puts all of them together
	}
	return text
}

// constants declares what Lua knows of Go, by the names of the parts:
//
//	names    PREFIX, SUFFIX: what stands before and after the hash tag in a partition's prefix
//	         SINGLE: the hash tag of a Redis that is not a cluster
//	latest   LATEST: the latest due time, in unix ms
//	wake     WAKE: the channel of the wake messages
//	         WAKE_WITHIN: how far off a timer may be to be announced, in ms
//	limits   MAX_PAYLOAD: the payload limit in bytes
//	         LIMIT: says so in the list of functions
//	scores   HELD, HELD_TEXT: what is added to the due time of a held timer for its score in firing
//	         FREED, PAUSED, PERHAPS: the fractions of scores (lib/score.lua)
//	claimed  CLAIMED, NEXT, TELL: what begins the messages that timers were claimed, and what is next, and the command that sends them
//	         CLUSTER: whether this is one
//	tags     TAG_LETTERS, TAG_FIRST, TAG_BASE, TAG_BITS: how a slot's hash tag is computed, as in keys/slot.go
func constants(maxPayload int, wakeWithin int64) map[string]string {
	prefix, suffix, _ := strings.Cut(keys.Partition("/").Prefix(), "/")
	bits := strings.Trim(strings.ReplaceAll(fmt.Sprint(keys.TagBits()), " ", ","), "[]")
	return map[string]string{
		"names":  fmt.Sprintf("local PREFIX, SUFFIX, SINGLE = '%s', '%s', '%s'\n", prefix, suffix, keys.Single),
		"latest": fmt.Sprintf("local LATEST = %d\n", Latest),
		"wake":   fmt.Sprintf("local WAKE, WAKE_WITHIN = '%s', %d\n", keys.WakeChannel, wakeWithin),
		"limits": fmt.Sprintf("local MAX_PAYLOAD, LIMIT = %d, '%s'\n", maxPayload, fmt.Sprintf(limitText, maxPayload)),
		"scores": fmt.Sprintf("local HELD, HELD_TEXT, FREED, PAUSED, PERHAPS = %d, '%[1]d', %g, %g, %g\n", heldScore, partFreed, partPaused, partPerhaps),
		"tags": fmt.Sprintf("local TAG_LETTERS, TAG_FIRST, TAG_BASE, TAG_BITS = %d, %d, %d, {%s}\n",
			keys.TagLetters, keys.TagFirst, keys.TagBase, bits),
	}
}
