package diag_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
)

// The server's own reason decides, and the fix is possible.
func TestRefusal(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ said, text, fix string }{
		{"ERR max number of clients reached",
			"it has reached maxclients and refuses more clients: max number of clients reached",
			"stop a client that is not needed, so that another one gets in, then raise maxclients, "},
		{"OOM command not allowed when used memory > 'maxmemory'.",
			"it is out of memory and refuses every write that needs memory: OOM command",
			"as far as the machine has memory"},
		{"LOADING Redis is loading the dataset in memory", "it is loading its data: LOADING", "wait until it has"},
		{"MISCONF Errors writing to the AOF file: No space left on device",
			"it cannot write to its disk and refuses every write: MISCONF Errors",
			"takes writes again by itself; the directory: redis-cli CONFIG GET dir"},
		{"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands",
			"it cannot save its snapshot and refuses every write: MISCONF Redis is",
			"or restart Redis with another directory, then: redis-cli BGSAVE"},
		{"MISCONF Valkey is configured to save RDB snapshots", "it cannot save its snapshot", "redis-cli BGSAVE"},
		{"NOREPLICAS Not enough good replicas to write.", "it has too few replicas and refuses every write: NOREPLICAS",
			"bring its replicas back"},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
			"it is busy with a long script or function: BUSY Redis is busy running a script", "redis-cli SCRIPT KILL"},
		{"ERR Engine 'lua' not found", "it has no Lua, and so neither scripts nor functions: Engine 'lua' not found",
			"loadmodule /path/of/libvalkeylua.so"},
		{"ERR Could not find scripting engine 'lua'", "it has no Lua, and so neither scripts nor functions: ",
			"loadmodule /path/of/libvalkeylua.so"},
		{"READONLY You can't write: LOADING is no reason", "it is a replica and takes no writes: READONLY",
			"REPLICAOF NO ONE"},
	} {
		refusal := diag.Refusal(errors.New(c.said))
		if permanent := strings.Contains(c.said, "'lua'"); refusal.IsPermanent() != permanent {
			t.Errorf("%s: permanent: %v", c.said, !permanent)
		}
		if refusal == nil || !strings.HasPrefix(refusal.Problem(), c.text) || !strings.Contains(refusal.Fix(), c.fix) {
			t.Errorf("%s: %+v", c.said, refusal)
		}
	}
	for _, err := range []error{nil, errors.New("ERR unknown command"),
		errors.New("NOPERM this user has no permissions")} {
		if refusal := diag.Refusal(err); refusal != nil {
			t.Errorf("%v: %+v", err, refusal)
		}
	}
}
