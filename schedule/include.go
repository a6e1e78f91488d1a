package schedule

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// includeLine begins the line at the head of a Lua file that names the parts which it uses.
const includeLine = "-- include: "

// parts is what Lua files may include.
type parts struct {
	files fs.FS             // NAME.lua in one of the folders
	in    []string          // the folders
	given map[string]string // the texts of those that are no files, or are another file in each Redis
}

// errNoPart says that there is no part of a name, and errCircle that one includes itself by way of others.
var (
	errNoPart = errors.New("there is no such part")
	errCircle = errors.New("it includes itself")
)

// assemble returns the text of a script: its first line if that is for Redis, then all that it includes, each part once and after
// those that it includes itself, then the rest.
func (p parts) assemble(text string) (string, error) {
	var b strings.Builder
	if strings.HasPrefix(text, "#!") {
		head, rest, _ := strings.Cut(text, "\n")
		b.WriteString(head + "\n")
		text = rest
	}
	err := p.add(&b, text, nil, map[string]bool{})
	return b.String(), err
}

// add writes a text behind what it includes, but for what is done. path is by which parts it is included.
func (p parts) add(b *strings.Builder, text string, path []string, done map[string]bool) error {
	var names []string
	if line, rest, _ := strings.Cut(text, "\n"); strings.HasPrefix(line, includeLine) {
		names, text = strings.Fields(strings.TrimPrefix(line, includeLine)), rest
	}
	for _, name := range names {
		if slices.Contains(path, name) {
			return fmt.Errorf("part %q: %w, by %q", name, errCircle, path)
		}
		if done[name] {
			continue
		}
		part, err := p.read(name)
		if err == nil {
			err = p.add(b, part, append(path, name), done)
		}
		if err != nil {
			return err
		}
		done[name] = true
	}
	b.WriteString(text)
	return nil
}

// read returns the text of a part.
func (p parts) read(name string) (string, error) {
	if text, ok := p.given[name]; ok {
		return text, nil
	}
	for _, folder := range p.in {
		text, err := fs.ReadFile(p.files, folder+"/"+name+".lua")
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return string(text), err
		}
	}
	return "", fmt.Errorf("part %q: %w", name, errNoPart)
}
