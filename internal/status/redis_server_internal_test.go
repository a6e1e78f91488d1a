package status

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

// The fix is no limit over the machine's memory: the kernel would kill Redis.
func TestMoreMemory(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]string{
		"used_memory:2000\nmaxmemory:1000\ntotal_system_memory:10000": "raise maxmemory, here and in redis.conf: " +
			"redis-cli CONFIG SET maxmemory 3000",
		"used_memory:1000\nmaxmemory:6000\ntotal_system_memory:10000": "give the machine of Redis more memory than " +
			"its 10000 bytes, then ",
		"used_memory:1000\nmaxmemory:6000": "raise maxmemory, here and in redis.conf: " +
			"redis-cli CONFIG SET maxmemory 9000",
		"used_memory:1000\nmaxmemory:5332\ntotal_system_memory:10000\n": "raise maxmemory, here and in redis.conf: " +
			"redis-cli CONFIG SET maxmemory 7998",
	} {
		if got := moreMemory(diag.ParseInfo(info)); !strings.HasPrefix(got, want) {
			t.Errorf("%q: %s, want %s", info, got, want)
		}
	}
}

// Whoever sets timers chooses the names of apps, and an operator pastes the command that grants them.
func TestPrintable(t *testing.T) {
	t.Parallel()
	for app, want := range map[string]string{
		"shop": "shop:*:*:*", "x'; id; '": "x'; id; ':*:*:*", "a\x1b[31m\n": `a?\[31m?:*:*:*`,
		"a\u202eb": "a???b:*:*:*", "\xff": "?:*:*:*",
	} {
		if got := printable(keys.Namespace{App: app}.Glob()); got != want {
			t.Errorf("%q: %q, want %q", app, got, want)
		}
	}
}
