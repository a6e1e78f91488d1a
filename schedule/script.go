package schedule

import (
	_ "embed"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

//go:embed timerd.lua
var source string

// LibraryName is the name of the function library in Redis.
const LibraryName = "timerd"

// wakeWithin is how far off a timer of a cluster may be for the function library to
// announce it: there a message goes to every node. What is further off is found by
// a sweep before it is due, whatever the sweep interval.
const wakeWithin = 2*time.Minute + 10*time.Second

// scripts holds timerd.lua cut into what Redis loads.
type scripts struct {
	library                                             string // source of the function library
	observe, claim, release, retry, audit, beat, settle *redis.Script
	survey, apps, trim                                  *redis.Script // of many partitions
}

// newScripts cuts timerd.lua at its "--@" lines. maxPayload is in bytes.
func newScripts(maxPayload int, cluster bool) *scripts {
	sections := map[string]string{}
	for _, section := range strings.Split(source, "\n--@ ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		sections[name] = body
	}
	prefix, suffix, _ := strings.Cut(keys.Partition("/").Prefix(), "/")
	names := fmt.Sprintf("local PREFIX, SINGLE, SUFFIX, WAKE, MAX_PAYLOAD = '%s', '%s', '%s', '%s', %d\n",
		prefix, keys.Single, suffix, keys.WakeChannel, maxPayload)
	enter := "single"
	within := int64(math.MaxInt64)
	if cluster {
		enter, within = "cluster", wakeWithin.Milliseconds()
		names += fmt.Sprintf("local TAG_LETTERS, TAG_FIRST, TAG_BASE, TAG_BITS = %d, %d, %d, {%s}\n",
			keys.TagLetters, keys.TagFirst, keys.TagBase, strings.Trim(strings.ReplaceAll(fmt.Sprint(keys.TagBits()), " ", ","), "[]"))
	}
	names += fmt.Sprintf("local WAKE_WITHIN = %d\n", within)
	common := names + sections["common"]
	// Settling and claiming must go on when Redis is out of memory: they free it.
	script := func(name, flags string) *redis.Script {
		return redis.NewScript("#!lua flags=" + flags + "\n" + common + sections["script "+name])
	}
	const onOne, onMany = "allow-oom", "allow-oom,allow-cross-slot-keys"
	return &scripts{
		library: "#!lua name=" + LibraryName + "\n" + common + sections[enter] + sections["library"],
		observe: script("observe", onOne),
		claim:   script("claim", onOne),
		release: script("release", onOne),
		retry:   script("retry", onOne),
		audit:   script("audit", onOne),
		beat:    script("beat", onOne),
		settle:  script("settle", onOne),
		survey:  script("survey", onMany+",no-writes"),
		apps:    script("apps", onMany+",no-writes"),
		trim:    script("trim", onMany),
	}
}
