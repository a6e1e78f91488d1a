package diag_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
)

// literal returns a text built by code, with … for parts known only at run time.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil {
			return regexp.MustCompile(`%(\[\d\])?[a-z.\d]*[a-z]`).ReplaceAllString(text, "…")
		}
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return "…"
}

// Fixes are pasted into a shell. So the instruction comes first and its command last: it ends with the fix, or before
// another way, "; or".
func TestCommandsEndFixes(t *testing.T) {
	t.Parallel()
	glued := regexp.MustCompile(`, |; | \(|, once| which | shows `)
	seen := 0
	look := func(path string, e ast.Expr) {
		text := literal(e)
		if !regexp.MustCompile(`\b(redis-cli [A-Z]|nats (stream|consumer) )|: timerd [a-z]`).MatchString(text) {
			return
		}
		for _, step := range diag.Steps(text) {
			if !step.Command {
				continue
			}
			seen++
			if glued.MatchString(regexp.MustCompile(`'[^']*'`).ReplaceAllString(step.Text, "")) {
				t.Errorf("%s: words stand behind a command: %s", path, text)
			}
		}
	}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				look(path, n)
				return false
			case *ast.BasicLit:
				look(path, n)
			}
			return true
		})
		return nil
	})
	if err != nil || seen < 20 {
		t.Errorf("%d commands, %v", seen, err)
	}
}

// A fix is split where its commands begin and end, whatever names are quoted in them.
func TestSteps(t *testing.T) {
	t.Parallel()
	for fix, want := range map[string]string{
		"": "", "look at it": "look at it", "timerd makes it": "timerd makes it",
		"redis-cli TIME":             "[redis-cli TIME]",
		"look; then: timerd dead ls": "look; then: [timerd dead ls]",
		"wait: or not; or: nats -s x stream rm 'a; or b': c; or, later: timerd status": "wait: or not; or: " +
			"[nats -s x stream rm 'a; or b': c]; or, later: [timerd status]",
		"the log: redis-cli is slow": "the log: redis-cli is slow",
	} {
		got := ""
		for _, step := range diag.Steps(fix) {
			if step.Command {
				step.Text = "[" + step.Text + "]"
			}
			got += step.Text
		}
		if got != want {
			t.Errorf("%q is split into %q, want %q", fix, got, want)
		}
	}
}
