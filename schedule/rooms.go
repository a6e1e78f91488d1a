package schedule

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
)

// rooms are the parts of the Lua programs: lua/lib has a file for each. A room is a table, declared here, with the
// functions and constants that others use by ROOM.NAME; other locals stay in its file. So no file has a list of
// includes, and a chunk stays far below Lua's limits of 200 locals and of 60 outer locals in a function.
type rooms struct {
	base      room            // begins each text
	all       map[string]room // by name
	constants []constant      // values of Go that Lua uses
}

// room is a text of Lua, and the words in it: some of them are the names of the rooms and constants that it uses.
type room struct {
	text  string
	words []string
}

// constant is a line that declares local variables.
type constant struct {
	names []string
	line  string
}

// newRooms reads the rooms. instead has files that replace others, by name.
func newRooms(files fs.FS, folder string, constants []constant, instead map[string]string) (*rooms, error) {
	entries, err := fs.ReadDir(files, folder)
	if err != nil {
		return nil, fmt.Errorf("read the rooms: %w", err)
	}
	all := map[string]room{}
	for _, entry := range entries {
		text, err := readLua(files, path.Join(folder, entry.Name()))
		if err != nil {
			return nil, err
		}
		all[strings.TrimSuffix(entry.Name(), ".lua")] = room{text, luaWords(text)}
	}
	for name, file := range instead {
		all[name] = all[file]
	}
	base := all["base"]
	delete(all, "base")
	return &rooms{base, all, constants}, nil
}

// readLua reads a file without the lines that are comments.
func readLua(files fs.FS, name string) (string, error) {
	text, err := fs.ReadFile(files, name)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", name, err)
	}
	var b strings.Builder
	inComment := false
	for line := range strings.Lines(string(text)) {
		code := strings.TrimSpace(line)
		inComment = inComment || strings.HasPrefix(code, "--[[")
		if !inComment && code != "" && !strings.HasPrefix(code, "--") {
			b.WriteString(line)
		}
		inComment = inComment && !strings.HasSuffix(code, "]]")
	}
	return b.String(), nil
}

// luaWords returns the words of a text without comments and strings, each once: constants, and rooms with a point
// behind them.
func luaWords(text string) []string {
	words := map[string]bool{}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\'' || c == '"':
			for i++; text[i] != c; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case strings.HasPrefix(text[i:], "--"):
			i += strings.IndexByte(text[i:], '\n')
		case isWord(c):
			begin := i
			for i++; isWord(text[i]); i++ {
			}
			if word := text[begin:i]; text[i] == '.' || c >= 'A' && c <= 'Z' {
				words[word] = true
			}
			i--
		}
	}
	return slices.Collect(maps.Keys(words))
}

func isWord(c byte) bool { return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// assemble returns a text behind its first line, the base, and the constants and rooms that it uses.
func (r *rooms) assemble(head, text string) string {
	used, words := map[string]bool{}, map[string]bool{}
	var use func([]string)
	use = func(all []string) {
		for _, word := range all {
			words[word] = true
			if room, is := r.all[word]; is && !used[word] {
				used[word] = true
				use(room.words)
			}
		}
	}
	use(r.base.words)
	use(luaWords(text))
	var b strings.Builder
	b.WriteString(head + r.base.text)
	for _, c := range r.constants {
		if slices.ContainsFunc(c.names, func(name string) bool { return words[name] }) {
			b.WriteString(c.line)
		}
	}
	names := slices.Sorted(maps.Keys(used))
	if len(names) > 0 {
		b.WriteString("local " + strings.Join(names, ", ") + " = {}" + strings.Repeat(", {}", len(names)-1) + "\n")
	}
	for _, name := range names {
		b.WriteString("do\n" + r.all[name].text + "end\n")
	}
	b.WriteString(text)
	return b.String()
}
