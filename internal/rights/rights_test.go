package rights_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/testenv"
	"github.com/timerd-io/timerd/schedule"
)

// The test of rights changes nothing, leaves the connection usable, and names the rights to grant.
func TestRights(t *testing.T) {
	t.Parallel()
	server := testenv.Redis(t, devserver.ACL("user default on nopass ~* &* +@all\nuser app on nopass ~* &* +@all\n"))
	admin := server.Client()
	app := server.Client(func(o *redis.Options) { o.Username, o.Password, o.PoolSize = "app", "any", 1 })
	nodes, err := schedule.New(app, 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lacking := func(change ...any) *rights.Lacking {
		t.Helper()
		if err := admin.Do(t.Context(), append([]any{"ACL", "SETUSER", "app"}, change...)...).Err(); err != nil {
			t.Fatal(err)
		}
		l, err := rights.Needs{Events: true}.Lacking(t.Context(), nodes[0])
		if err != nil {
			t.Fatal(err)
		}
		if got := app.Ping(t.Context()).String(); got != "ping: PONG" {
			t.Errorf("afterwards: %s", got)
		}
		return l
	}
	events := admin.PSubscribe(t.Context(), "__keyspace@0__:*")
	defer func() { _ = events.Close() }()
	if _, err := events.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := lacking("+@all").Finding(true); f != nil {
		t.Errorf("with all rights: %+v", f)
	}
	if n := admin.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys", n)
	}
	if err := admin.Set(t.Context(), "last", "", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if m, err := events.ReceiveMessage(t.Context()); err != nil || !strings.HasSuffix(m.Channel, ":last") {
		t.Errorf("an event of %v, %v", m, err)
	}

	for change, want := range map[string]diag.Finding{
		"-zadd": {Level: diag.Fail, Text: "user app lacks +zadd", Fix: ": redis-cli ACL SETUSER app +zadd"},
		"-config|get": {Level: diag.Warn, Text: "user app lacks +config|get",
			Fix: ": redis-cli ACL SETUSER app '+config|get'"},
		"-discard": {Level: diag.Fail, Text: "user app lacks +discard", Fix: ": redis-cli ACL SETUSER app +discard"},
		"-psubscribe": {Level: diag.Fail, Text: "user app lacks +psubscribe",
			Fix: ": redis-cli ACL SETUSER app +psubscribe"},
	} {
		f := lacking("+@all", change).Finding(true)
		if f == nil || f.Level != want.Level || f.Text != want.Text || !strings.HasSuffix(f.Fix, want.Fix) {
			t.Errorf("%s: %+v", change, f)
		}
	}
	if admin.Do(t.Context(), "ACL", "SETUSER", "app", "db=3").Err() == nil { // a Valkey whose ACLs have databases
		f := lacking("+@all").Finding(true)
		if f == nil || f.Level != diag.Fail || f.Text != "user app lacks alldbs" ||
			!strings.HasSuffix(f.Fix, ": redis-cli ACL SETUSER app alldbs") {
			t.Errorf("with another database: %+v", f)
		}
		lacking("alldbs")
	}
	deaf := lacking("+@all", "resetchannels", "&timerd:*")
	if f := deaf.Finding(true); f == nil || !strings.Contains(f.Fix,
		" '&__keyevent@0__:expired' '&__keyspace@0__:timerd:canary:*'") {
		t.Errorf("without channels: %+v", f)
	}
	if f := deaf.Finding(false); f != nil {
		t.Errorf("without channels, where none is heard: %+v", f)
	}
}

// A command that the server does not have is no right that somebody could grant. CONFIG is no need.
func TestMissingCommands(t *testing.T) {
	t.Parallel()
	var opts []devserver.RedisOption
	for _, command := range []string{"ACL", "CONFIG", "MEMORY", "OBJECT"} {
		opts = append(opts, devserver.Directive("rename-command", command, ""))
	}
	nodes, err := schedule.New(testenv.Redis(t, opts...).Client(), 1000).Nodes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := rights.Needs{Events: true}.Lacking(t.Context(), nodes[0])
	if err != nil || !l.NoACL || !l.Stops() {
		t.Fatalf("%+v, %v", l, err)
	}
	f := l.Finding(true)
	if f == nil || f.Level != diag.Fail || f.Text != "the server has no OBJECT IDLETIME, MEMORY USAGE" ||
		!strings.Contains(f.Fix, "rename-command") {
		t.Errorf("%+v", f)
	}
	l.Missing, l.Commands = nil, []string{"+zadd"}
	if f := l.Finding(true); f.Text != "the user lacks +zadd" || strings.Contains(f.Fix, "SETUSER") {
		t.Errorf("without ACL: %+v", f)
	}
}

// Every command in the schedule's scripts has to be among the rights that are tried.
func TestRightsKnowTheScripts(t *testing.T) {
	t.Parallel()
	steps, err := filepath.Glob("../../schedule/lua/*/*.lua")
	reads, err2 := filepath.Glob("../query/lua/*.lua")
	files := slices.Concat(steps, reads)
	if err := errors.Join(err, err2); err != nil || len(steps) == 0 || len(reads) == 0 {
		t.Fatal(files, err)
	}
	var lua []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lua = append(lua, text...)
	}
	rights, err := os.ReadFile("rights.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(string(lua), -1) {
		if command := strings.ToLower(call[1]); !regexp.MustCompile(`"` + command + `["|]`).Match(rights) {
			t.Errorf("the right to %s is not tried", command)
		}
	}
}
