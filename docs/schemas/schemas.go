// Package schemas has the JSON Schemas (2020-12) of timerd's messages and lines, and an AsyncAPI document of its
// subjects. `timerd schema` prints them; internal/console/apitest holds them to the code.
package schemas

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

//go:embed *.json asyncapi.yaml
var files embed.FS

// Names returns the names of all documents, sorted: the arguments for Text.
func Names() []string {
	var names []string
	entries, _ := fs.ReadDir(files, ".") // embedded, so it cannot fail
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), ".")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Text returns the document of a name, and false if there is none.
func Text(name string) (string, bool) {
	for _, ending := range []string{".json", ".yaml"} {
		if text, err := files.ReadFile(name + ending); err == nil {
			return string(text), true
		}
	}
	return "", false
}
