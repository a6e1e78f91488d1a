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

//go:embed lua/*.lua
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
	maxPayload                                               int    // in bytes
	library                                                  string // source of the function library
	observe, claim, release, settle, retry, audit, heartbeat *redis.Script
	claimShort, settleRepeat                                 *redis.Script
	doubtApps                                                *redis.Script
	countFiring, tidyOwed                                    *redis.Script
	ahead, replanFind, replan                                *redis.Script
	scanDue, apps, forgetApps, trim                          *redis.Script // of many partitions
	losses                                                   *redis.Script // of a server
	holdWrite, holdRelease, holdShift, holdDraw, holdRedraw  *redis.Script
	holdCopy, holdLook                                       *redis.Script // of many partitions
	setTime                                                  *redis.Script

	constants string
	read      sync.Map // the scripts of packages that only read, by their names
}

// reading returns a script of a package that only reads. Its first line says what Redis is to know of it, and the second one which
// parts it includes.
func (s *scripts) reading(files fs.FS, name string) *redis.Script {
	if known, ok := s.read.Load(name); ok {
		return known.(*redis.Script)
	}
	text, err := fs.ReadFile(files, "lua/"+name+".lua")
	if err != nil {
		panic(err) // a script that is not embedded: every test of it finds it
	}
	head, rest, _ := strings.Cut(string(text), "\n")
	if line, after, _ := strings.Cut(rest, "\n"); strings.HasPrefix(line, includes) {
		rest = join(strings.Fields(strings.TrimPrefix(line, includes))...) + after
	}
	script, _ := s.read.LoadOrStore(name, redis.NewScript(head+"\n"+s.constants+rest))
	return script.(*redis.Script)
}

// includes begins the line with the parts of a script.
const includes = "-- include: "

// newScripts puts the library and the scripts together. Each is a list of files in lua/, and has no part that it does
// not need: Redis makes the functions of all parts anew each time it runs a script, which takes longer than the
// commands of most. maxPayload is in bytes, and db the number of the database, of
// which only the claims know: the library is that of all databases.
func newScripts(maxPayload int, cluster bool, db int) *scripts {
	partition, within, claimed := "partition_single", int64(math.MaxInt64), keys.ClaimedMessage(db)
	if cluster {
		partition, within, claimed = "partition_cluster", wakeWithin.Milliseconds(), ""
	}
	constants := constants(maxPayload, within)
	script := func(flags string, parts ...string) *redis.Script {
		return redis.NewScript("#!lua flags=" + flags + "\n" + constants + join(parts...))
	}
	claims := func(parts ...string) *redis.Script {
		return redis.NewScript("#!lua flags=allow-oom\n" + constants + fmt.Sprintf("local CLAIMED = '%s'\n", claimed) + join(parts...))
	}
	// Settling and claiming must go on when Redis is out of memory: they free it.
	const one, many, manyRead = "allow-oom", "allow-oom,allow-cross-slot-keys", "allow-oom,allow-cross-slot-keys,no-writes"
	return &scripts{
		maxPayload: maxPayload,
		constants:  constants,
		library: "#!lua name=" + LibraryName + "\n" + constants + hashTagConstants() +
			join("clock", "index", "hold", "common", "move", "owed", "fire", "beside", "payload", "contest", "announce", "count_call", "states", partition,
				"library", "cron", "library_repeat"),
		observe:      script(one, "clock", "index", "common", "move", "owed", "fire", "beside", "payload", "contest", "aside", "observe"),
		claim:        claims("clock", "index", "hold", "common", "move", "tell", "owed", "fire", "beside", "again", "payload", "contest", "aside", "claim"),
		claimShort:   claims("clock", "index", "hold", "move", "tell", "claim_short"),
		release:      script(one, "clock", "owed", "release"),
		settle:       script(one, "owed", "settle"),
		settleRepeat: script(one, "clock", "index", "common", "owed", "payload", "announce", "settle_repeat"),
		retry:        script(one, "clock", "index", "common", "move", "owed", "fire", "beside", "again", "payload", "announce", "later", "retry"),
		audit:        script(one, "clock", "index", "hold", "common", "payload", "losses", "tally", "audit"),
		doubtApps:    script(one, "clock", "index", "common", "doubt_apps"),
		heartbeat:    script(one, "clock", "heartbeat"),
		scanDue:      script(manyRead, "clock", "scan_due"),
		losses:       script(manyRead, "clock", "losses", "read_losses"),
		apps:         script(manyRead, "apps"),
		forgetApps:   script(many, "forget_apps"),
		trim:         script(many, "trim"),

		ahead:      script(manyRead, "clock", "ahead"),
		replanFind: script("no-writes", "clock", "index", "common", "replan_find"),
		replan:     script(one, "clock", "index", "common", "announce", "replan"),

		countFiring: script(one, "clock", "hold", "owed", "tally", "count_firing"),
		tidyOwed:    script(one, "owed", "tidy_owed"),

		holdWrite:   script(one, "clock", "hold_write"),
		holdCopy:    script(many, "hold_copy"),
		holdLook:    script(manyRead, "clock", "look", "hold_look"),
		holdRelease: script(one, "clock", "index", "hold", "common", "payload", "announce", "hold_find", "hold_release"),
		holdShift: script(one, "clock", "index", "hold", "common", "move", "owed", "fire", "beside", "payload", "announce", "later",
			"hold_find", "hold_shift"),
		holdDraw:   script(one, "hold_draw"),
		holdRedraw: script(many, "clock", "hold_redraw"),

		setTime: script(one, "clock", "index", "hold", "common", "move", "owed", "fire", "beside", "payload", "announce", "states", "later",
			"set_time"),
	}
}

// constants declares what Lua knows of Go:
//
//	PREFIX, SUFFIX  what stands before and after the hash tag in a partition's prefix
//	SINGLE          the hash tag of a Redis that is not a cluster
//	WAKE            the channel of the wake messages
//	WAKE_WITHIN     how far off a timer may be to be announced, in ms
//	MAX_PAYLOAD     the payload limit in bytes
//	LIMIT           says so in the list of functions
//	HELD, HELD_TEXT what is added to the due time of a held timer for its score in firing
func constants(maxPayload int, wakeWithin int64) string {
	prefix, suffix, _ := strings.Cut(keys.Partition("/").Prefix(), "/")
	return fmt.Sprintf("local PREFIX, SUFFIX, SINGLE, WAKE, WAKE_WITHIN, MAX_PAYLOAD, LIMIT = '%s', '%s', '%s', '%s', %d, %d, '%s'\n"+
		"local HELD, HELD_TEXT = %d, '%[8]d'\n",
		prefix, suffix, keys.Single, keys.WakeChannel, wakeWithin, maxPayload, fmt.Sprintf(limitText, maxPayload), heldScore)
}

// hashTagConstants declares how a slot's hash tag is computed, as in keys/slot.go:
// TAG_LETTERS, TAG_FIRST, TAG_BASE and TAG_BITS.
func hashTagConstants() string {
	bits := strings.Trim(strings.ReplaceAll(fmt.Sprint(keys.TagBits()), " ", ","), "[]")
	return fmt.Sprintf("local TAG_LETTERS, TAG_FIRST, TAG_BASE, TAG_BITS = %d, %d, %d, {%s}\n",
		keys.TagLetters, keys.TagFirst, keys.TagBase, bits)
}

// join returns the text of parts.
func join(parts ...string) string {
	var text strings.Builder
	for _, part := range parts {
		source, err := lua.ReadFile("lua/" + part + ".lua")
		if err != nil {
			panic(err) // a part that is not embedded: every test of this package finds it
		}
		text.Write(source)
	}
	return text.String()
}
