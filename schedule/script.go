package schedule

import (
	_ "embed"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
)

//go:embed timerd.lua
var source string

// LibraryName is the name of the function library in Redis.
const LibraryName = "timerd"

// scripts holds timerd.lua cut into what Redis loads.
type scripts struct {
	library                                     string // source of the function library
	observe, claim, release, retry, audit, beat *redis.Script
}

// newScripts cuts timerd.lua at its "--@" lines. maxPayload is in bytes.
func newScripts(maxPayload int) *scripts {
	sections := map[string]string{}
	for _, section := range strings.Split(source, "\n--@ ")[1:] {
		name, body, _ := strings.Cut(section, "\n")
		sections[name] = body
	}
	constants := fmt.Sprintf("local PREFIX, WAKE, MAX_PAYLOAD = '%s', '%s', %d\n",
		keys.Single.Prefix(), keys.WakeChannel, maxPayload)
	common := constants + sections["common"]
	// Settling and claiming must go on when Redis is out of memory: they free it.
	script := func(name string) *redis.Script {
		return redis.NewScript("#!lua flags=allow-oom\n" + common + sections["script "+name])
	}
	return &scripts{
		library: "#!lua name=" + LibraryName + "\n" + common + sections["library"],
		observe: script("observe"),
		claim:   script("claim"),
		release: script("release"),
		retry:   script("retry"),
		audit:   script("audit"),
		beat:    script("beat"),
	}
}
