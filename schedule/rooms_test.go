package schedule

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestRoomsAreAddedWhereTheyAreUsed(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"lib/base.lua":  {Data: []byte("local run\n-- comment\n")},
		"lib/one.lua":   {Data: []byte("function one.go()\n  return two.NAME, GIVEN -- comment\nend\n")},
		"lib/two.lua":   {Data: []byte("--[[ three.none\nof it ]]\ntwo.NAME = 2\n")},
		"lib/three.lua": {Data: []byte("function three.go() return one.go() end\n")},
		"lib/other.lua": {Data: []byte("function four.go() return OTHER end\n")},
	}
	r, err := newRooms(files, "lib", []constant{declared("local GIVEN, MORE = 1, 2\n"), declared("local OTHER = 3\n")},
		map[string]string{"four": "other"})
	if err != nil {
		t.Fatal(err)
	}
	const one = "do\nfunction one.go()\n  return two.NAME, GIVEN -- comment\nend\nend\n" //nolint:dupword // Lua
	for text, want := range map[string]string{
		"return 1\n": "#!lua\nlocal run\nreturn 1\n",
		"return one.go()\n": "#!lua\nlocal run\nlocal GIVEN, MORE = 1, 2\nlocal one, two = {}, {}\n" + one +
			"do\ntwo.NAME = 2\nend\nreturn one.go()\n",
		//nolint:dupword // Lua
		"return four.go()\n": "#!lua\nlocal run\nlocal OTHER = 3\nlocal four = {}\n" +
			"do\nfunction four.go() return OTHER end\nend\nreturn four.go()\n",
	} {
		if got := r.assemble("#!lua\n", text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// luaFiles parses all files of Lua, by their paths.
func luaFiles(t *testing.T) map[string]*luaFile {
	t.Helper()
	all := map[string]*luaFile{}
	for _, folder := range []struct {
		files fs.FS
		dir   string
	}{{lua, "lua/lib"}, {lua, "lua/functions"}, {lua, "lua/steps"}, {os.DirFS("../internal/query"), "lua"}} {
		entries, err := fs.ReadDir(folder.files, folder.dir)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d files in %s, %v", len(entries), folder.dir, err)
		}
		for _, entry := range entries {
			name := path.Join(folder.dir, entry.Name())
			text, err := fs.ReadFile(folder.files, name)
			if err != nil || all[name] != nil {
				t.Fatalf("%s: %v, or there are two", name, err)
			}
			all[name] = parseLua(name, string(text))
		}
	}
	return all
}

// Each name that a file of Lua uses is declared: by itself, by a room or by Go. Redis finds others only when it comes
// to them. And whatever a room declares is used.
func TestLuaUsesWhatIsDeclared(t *testing.T) {
	t.Parallel()
	files := luaFiles(t)
	known, defined, used := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for name := range strings.FieldsSeq(
		"redis tonumber string math table unpack ipairs pairs type pcall error select cjson bit run int BUDGET steps " +
			"bound") {
		known[name] = true
	}
	s := newScripts(DefaultMaxPayload, true, 0)
	for room := range s.rooms.all {
		known[room] = true
	}
	for _, c := range s.rooms.constants {
		for _, name := range c.names {
			known[name] = true
		}
	}
	for _, f := range files {
		maps.Copy(defined, f.defines)
	}
	for name, f := range files {
		for _, use := range f.free {
			if isScript := path.Dir(name) == "lua"; !known[use.name] &&
				(!isScript || use.name != "KEYS" && use.name != "ARGV") {
				t.Errorf("%s: nobody declares %v", name, use)
			}
		}
		for _, use := range f.members {
			room, _, _ := strings.Cut(use.name, ".")
			used[use.name] = true
			if s.rooms.all[room].text != "" && !defined[use.name] {
				t.Errorf("%s: nobody declares %v", name, use)
			}
		}
	}
	for name := range defined {
		if !used[name] && !strings.HasPrefix(name, "steps.") {
			t.Errorf("nobody uses %s", name)
		}
	}
}

// A step begins its call before it uses run, or a room that does: there run is still that of the last call, perhaps of
// another partition, or nil.
func TestStepsBeginTheirCalls(t *testing.T) {
	t.Parallel()
	files := luaFiles(t)
	var uses func(name string, asked map[string]bool) bool
	uses = func(name string, asked map[string]bool) bool {
		room, _, _ := strings.Cut(name, ".")
		if room == "run" {
			return true
		}
		f := files["lua/lib/"+room+".lua"]
		if room == "partition" {
			f = files["lua/lib/partition_cluster.lua"]
		}
		if f == nil || asked[room] || name == "index.begin" || name == "index.begin_timeless" || name == "index.open" {
			return false
		}
		asked[room] = true
		return slices.ContainsFunc(f.members, func(use luaUse) bool { return uses(use.name, asked) })
	}
	for name, f := range files {
		if path.Dir(name) != "lua/steps" {
			continue
		}
		begun, first, before := 0, 0, ""
		for _, use := range f.members { // in the order of the file
			switch {
			case use.name == "index.begin" || use.name == "index.begin_timeless" || use.name == "index.open":
				begun = cmp.Or(begun, use.line)
			case use.line >= f.lastDefined && first == 0 && uses(use.name, map[string]bool{}):
				first, before = use.line, use.name
			}
		}
		needs := slices.ContainsFunc(f.members, func(use luaUse) bool { return uses(use.name, map[string]bool{}) })
		if needs && begun == 0 {
			t.Errorf("%s: it uses %s and begins no call", name, before)
		} else if first != 0 && begun > first {
			t.Errorf("%s: it begins its call in line %d, after %s in line %d", name, begun, before, first)
		}
	}
}

// A library's variables outlive a call. So index.begin makes all state of a call anew, in run, and no function sets
// anything else outside itself. Only noted.lua keeps state of its own, judging.lua keeps the rules of the last claim
// for the next one, which names its own, restored.lua keeps the server's incarnation as long as the library lives, and
// library.lua sets Redis's globals, which stay.
func TestNothingButRunOutlivesACall(t *testing.T) {
	t.Parallel()
	for name, f := range luaFiles(t) {
		if path.Dir(name) == "lua" || name == "lua/lib/noted.lua" { // scripts, and see above
			continue
		}
		for _, use := range f.outlives {
			if name == "lua/lib/judging.lua" && strings.HasPrefix(use.name, "rules") ||
				name == "lua/lib/restored.lua" && use.name == "known" {
				continue
			}
			if !strings.HasPrefix(use.name, "run.") && (use.name != "run" || name != "lua/lib/index.lua") {
				t.Errorf("%s: a function sets %v, which outlives it", name, use)
			}
		}
	}
	//nolint:dupword // Lua
	f := parseLua("", "local a, t = 1, {}\nlocal function f(b)\n  local c = {}\n  b, c.d = 1, 2\n  a = 2\n"+
		"  t.x, t.y = 1\n  e = 3\n  local function g() b = 3 end\nend\n")
	var found []string
	for _, use := range f.outlives {
		found = append(found, use.String())
	}
	if want := []string{"a in line 5", "t.x in line 6", "t.y in line 6", "e in line 7"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

// A function finds Redis's globals by bound: see lua/library.lua.
func TestFunctionsAreBound(t *testing.T) {
	t.Parallel()
	s := newScripts(DefaultMaxPayload, true, 0)
	for name, text := range map[string]string{LibraryName: s.library(), "the steps": s.steps().text} {
		registered := strings.Count(text, "redis.register_function {")
		if bound := strings.Count(text, "callback = bound("); registered == 0 || bound != registered {
			t.Errorf("%s: %d of %d functions are bound", name, bound, registered)
		}
	}
}

// TTLs of users' keys, the time, and members of the index are read or written by the rooms that know what that means.
func TestCallsHaveTheirRooms(t *testing.T) {
	t.Parallel()
	const write = `redis\.p?call\('(ZADD|ZINCRBY|ZREM\w*|ZPOP\w*|HSET|HSETNX|HINCRBY\w*|HDEL)', ` +
		`(run\.|[\w.]*prefix \.\. ')`
	for what, room := range map[string]struct {
		pattern string
		files   []string
	}{
		// that one is of a key of timerd
		"a TTL":    {`redis\.p?call\('(SET|GETEX|P?TTL|P?EXPIRE\w*|PERSIST)'`, []string{"lib/ttl", "steps/hearing"}},
		"the time": {`'TIME'|\brun\.(time|now|now_text)\b`, []string{"lib/clock"}},
		// these two move timers
		"the index": {write + `(due|firing|data|firingdata)\b'?, [^']*($|'[^:])`,
			[]string{"lib/index", "lib/batch", "lib/quick"}},
		"beside":     {write + `(beside|aside)'`, []string{"lib/beside"}},
		"owed":       {write + `owed'`, []string{"lib/owing"}},
		"an account": {write + `account'`, []string{"lib/account", "steps/account_begin"}},
	} {
		pattern := regexp.MustCompile(room.pattern)
		for name := range luaFiles(t) {
			text, err := fs.ReadFile(lua, name)
			if path.Dir(name) == "lua" {
				text, err = os.ReadFile("../internal/query/" + name)
			}
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(room.files, strings.TrimSuffix(strings.TrimPrefix(name, "lua/"), ".lua")) {
				if !pattern.Match(text) {
					t.Errorf("%s reads or writes nothing of %s", name, what)
				}
				continue
			}
			for i, line := range strings.Split(string(text), "\n") {
				if pattern.MatchString(line) {
					t.Errorf("%s:%d: %s belongs into lua/%s.lua: %s", name, i+1, what, room.files[0],
						strings.TrimSpace(line))
				}
			}
		}
	}
}

// A file of Lua has 200 lines at most, and a function of it 40.
func TestLuaIsShort(t *testing.T) {
	t.Parallel()
	const mostLines, mostOfFunction = 200, 40
	for name, f := range luaFiles(t) {
		if f.lines > mostLines {
			t.Errorf("%s has %d lines, more than %d", name, f.lines, mostLines)
		}
		if f.longest > mostOfFunction {
			t.Errorf("%s: a function of %d lines, more than %d", f.longer, f.longest, mostOfFunction)
		}
	}
}
