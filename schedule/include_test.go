package schedule

import (
	"errors"
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

func TestPartsThatCannotBeIncluded(t *testing.T) {
	t.Parallel()
	p := parts{
		files: fstest.MapFS{
			"lib/a.lua": {Data: []byte("-- include: b\nA\n")},
			"lib/b.lua": {Data: []byte("-- include: c\nB\n")},
			"lib/c.lua": {Data: []byte("-- include: a\nC\n")},
			"lib/d.lua": {Data: []byte("-- include: e given\nD\n")},
			"lib/e.lua": {Data: []byte("-- include: given\nE\n")},
			"lib/f.lua": {Data: []byte("-- include: nowhere\nF\n")},
		},
		in: []string{"lib"}, given: map[string]string{"given": "G\n"},
	}
	for _, c := range []struct {
		text, want string
		err        error
	}{
		{text: "alone\n", want: "alone\n"},
		{text: "#!lua\n-- include: d e\nrest\n", want: "#!lua\nG\nE\nD\nrest\n"},
		{text: "-- include: a\n", err: errCircle},
		{text: "-- include: nowhere\n", err: errNoPart},
		{text: "-- include: d f\n", err: errNoPart},
	} {
		if got, err := p.assemble(c.text); !errors.Is(err, c.err) || err == nil && got != c.want {
			t.Errorf("%q: %q, %v; want %q, %v", c.text, got, err, c.want, c.err)
		}
	}
}

// luaFile is a Lua file, and what it says that it includes.
type luaFile struct {
	name     string
	includes []string
	defines  map[string]bool // what others may use, at the top level
	uses     map[string]bool // names, but for those that it defines itself
}

var (
	// luaNoise is what is no code: the first line, comments and texts.
	luaNoise = regexp.MustCompile(`(?s)^#![^\n]*|--\[\[.*?\]\]|--[^\n]*|'(\\.|[^'\\\n])*'|"(\\.|[^"\\\n])*"`)
	// luaTop is a definition at the top level, luaLocal one anywhere, luaArguments what a function or a loop defines.
	luaTop       = regexp.MustCompile(`(?m)^local (?:function (\w+)|([\w, ]+?) *(?:=|$))`)
	luaLocal     = regexp.MustCompile(`\blocal (?:function (\w+)|(\w+(?: *, *\w+)*))`)
	luaArguments = regexp.MustCompile(`\bfunction *\w* *\(([^)]*)\)|\bfor ([\w, ]+?) *(?:=|\bin\b)`)
	luaName      = regexp.MustCompile(`(^|[^\w.:]|\.\. *)([A-Za-z_]\w*)`)
)

// readLua reads a Lua file.
func readLua(name, text string) luaFile {
	f := luaFile{name: name, defines: map[string]bool{}, uses: map[string]bool{}}
	for _, line := range strings.SplitN(text, "\n", 3)[:2] {
		if names, ok := strings.CutPrefix(line, includeLine); ok {
			f.includes = strings.Fields(names)
		}
	}
	code := luaNoise.ReplaceAllString(text, `""`)
	own := map[string]bool{}
	add := func(all map[string]bool, pattern *regexp.Regexp) {
		for _, found := range pattern.FindAllStringSubmatch(code, -1) {
			for _, one := range strings.FieldsFunc(strings.Join(found[1:], ","), func(r rune) bool { return r == ',' || r == ' ' }) {
				all[one] = true
			}
		}
	}
	add(f.defines, luaTop)
	add(own, luaLocal)
	add(own, luaArguments)
	for _, found := range luaName.FindAllStringSubmatch(code, -1) {
		if !own[found[2]] {
			f.uses[found[2]] = true
		}
	}
	return f
}

// A Lua file includes each part of which it uses a name, and no other. So it says itself where its names come from.
func TestLuaFilesIncludeWhatTheyUse(t *testing.T) {
	t.Parallel()
	texts, folders := map[string]string{}, map[string]string{}
	for _, folder := range []struct {
		files fs.FS
		dir   string
	}{{lua, "lua/lib"}, {lua, "lua/functions"}, {lua, "lua/steps"}, {os.DirFS("../internal/query"), "lua"}} {
		entries, err := fs.ReadDir(folder.files, folder.dir)
		if err != nil || len(entries) == 0 {
			t.Fatalf("%d files in %s, %v", len(entries), folder.dir, err)
		}
		for _, entry := range entries {
			text, err := fs.ReadFile(folder.files, path.Join(folder.dir, entry.Name()))
			name := strings.TrimSuffix(entry.Name(), ".lua")
			if err != nil || texts[name] != "" {
				t.Fatalf("%s: %v, or there are two", name, err)
			}
			texts[name], folders[name] = string(text), folder.dir
		}
	}
	files, known := map[string]luaFile{}, map[string]luaFile{}
	for name, text := range texts {
		files[name] = readLua(name, text)
	}
	for _, cluster := range []bool{false, true} {
		s := newScripts(DefaultMaxPayload, cluster, 0)
		for name, text := range s.parts.given {
			known[name] = readLua(name, text)
		}
		for name, text := range texts {
			if slices.Contains(s.parts.in, folders[name]) {
				known[name] = files[name]
			} else if _, err := s.parts.assemble(text); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, f := range files {
			f.check(t, known)
		}
	}
}

// check compares what a file includes with what it uses.
func (f luaFile) check(t *testing.T, known map[string]luaFile) {
	t.Helper()
	if f.name == "library" { // it has nothing of its own
		return
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		part, used := known[name], ""
		for defined := range part.defines {
			if f.uses[defined] {
				used = defined
			}
		}
		switch includes := slices.Contains(f.includes, name); {
		case name == f.name, strings.HasPrefix(name, "partition_"): // it is included by the name partition
		case used != "" && !includes:
			t.Errorf("%s uses %s of %s: let it include that", f.name, used, name)
		case used == "" && includes:
			t.Errorf("%s includes %s, and uses nothing of it", f.name, name)
		}
	}
}
