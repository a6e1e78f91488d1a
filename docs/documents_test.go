package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// readmeLimit bounds the text that somebody reads before deciding to read on.
const readmeLimit = 8_800 // bytes

// architectureLimit bounds the text that somebody reads before a first change. The rest is in docs/inside.
const architectureLimit = 12_000 // bytes

// documentsLimit bounds the documents as a whole, which somebody has to keep true. Generated parts do not count.
const documentsLimit = 240_000 // bytes

// files returns the texts of the module's files whose names end as given, by their
// paths from its root.
func files(t *testing.T, suffixes ...string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		made := []string{"bin", "dist", "build", "node_modules"} // what make and npm write
		if entry.IsDir() && path != ".." && (strings.HasPrefix(name, ".") || slices.Contains(made, name)) {
			return fs.SkipDir
		}
		if entry.IsDir() || !slices.ContainsFunc(suffixes, func(suffix string) bool {
			return strings.HasSuffix(name, suffix)
		}) {
			return nil
		}
		text, err := os.ReadFile(path)
		found[strings.TrimPrefix(filepath.ToSlash(path), "../")] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Fatalf("no files %v found", suffixes)
	}
	return found
}

func TestReadmeIsShort(t *testing.T) {
	t.Parallel()
	if size := len(files(t, "README.md")["README.md"]); size == 0 || size > readmeLimit {
		t.Errorf("README.md has %d bytes, want at most %d: details belong in docs/reference.md", size, readmeLimit)
	}
}

func TestArchitectureIsShort(t *testing.T) {
	t.Parallel()
	if size := len(files(t, "architecture.md")["docs/architecture.md"]); size == 0 || size > architectureLimit {
		t.Errorf("docs/architecture.md has %d bytes, want at most %d: a subject belongs in docs/inside", size,
			architectureLimit)
	}
}

func TestDocumentsAreShort(t *testing.T) {
	t.Parallel()
	generated := regexp.MustCompile(`(?s)<!-- (?:results|imports):begin.*?:end -->`)
	size := 0
	for name, text := range files(t, ".md") {
		if strings.HasPrefix(name, "docs/") {
			size += len(generated.ReplaceAllString(text, ""))
		}
	}
	if size == 0 || size > documentsLimit {
		t.Errorf("docs has %d bytes without generated parts, want at most %d: cut repetitions before you add",
			size, documentsLimit)
	}
}

// Paths of files in backquotes are from the root of the module.
func TestNamedFilesExist(t *testing.T) {
	t.Parallel()
	path := regexp.MustCompile("`([\\w./-]+/[\\w.-]+\\.[a-z]+)`")
	found := 0
	documents := files(t, ".md")
	for _, name := range []string{"CONTRIBUTING.md", "docs/architecture.md"} {
		for _, file := range path.FindAllStringSubmatch(documents[name], -1) {
			if strings.Contains(file[1], "NAME") {
				continue
			}
			found++
			if _, err := os.Stat(filepath.Join("..", file[1])); err != nil {
				t.Errorf("%s names %s: %v", name, file[1], err)
			}
		}
	}
	if found < 30 {
		t.Errorf("only %d names of files found", found)
	}
}

// anchors returns the anchors that GitHub gives the headings of a document.
func anchors(text string) []string {
	var found []string
	text = regexp.MustCompile("(?s)\n```.*?\n```\n").ReplaceAllString(text, "\n\n")
	marks := regexp.MustCompile(`[^\pL\pN _-]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ +(.+)$`).FindAllStringSubmatch(text, -1) {
		anchor := marks.ReplaceAllString(strings.ToLower(heading[1]), "")
		found = append(found, strings.ReplaceAll(anchor, " ", "-"))
	}
	return found
}

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	documents := files(t, ".md")
	headings := map[string][]string{} // anchors by document
	for name, text := range documents {
		headings[name] = anchors(text)
	}
	for name, text := range documents {
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(link[1], "#")
			target := name
			if path != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(name), path))
			}
			if _, err := os.Stat(filepath.Join("..", target)); err != nil {
				t.Errorf("%s links to %s: %v", name, link[1], err)
			}
			if anchor != "" && !slices.Contains(headings[target], anchor) {
				t.Errorf("%s links to %s: %s has no such heading", name, link[1], target)
			}
		}
	}
}

func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	there := map[string]bool{}
	for _, text := range files(t, "_test.go") {
		for _, function := range regexp.MustCompile(
			`(?m)^func ((?:Test|Fuzz|Example|Benchmark)\w*)\(`).FindAllStringSubmatch(text, -1) {
			there[function[1]] = true
		}
	}
	for name, text := range files(t, ".md", ".lua", ".pml") {
		for _, test := range regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`).FindAllString(text, -1) {
			// CONTRIBUTING.md shows how to write a test.
			if !there[test] && !strings.Contains(text, "func "+test+"(") {
				t.Errorf("%s names %s, which is no test: it was renamed, or went", name, test)
			}
		}
	}
}
