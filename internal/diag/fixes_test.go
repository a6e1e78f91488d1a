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
)

// literal returns a text that code puts together, with … for what is known only when it runs.
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

// Fixes are pasted into a shell. So what to do comes first and its command last: it ends with the fix, or before another way, "; or".
func TestCommandsEndFixes(t *testing.T) {
	t.Parallel()
	begin := regexp.MustCompile(`(^|: |now: )((redis-cli (--|[A-Z])|nats (stream|consumer) [a-z]|timerd (status|dead|deliveries|doctor|holds?|resume|set|cancel|ls) )[^\n]*)`)
	glued := regexp.MustCompile(`, |; | \(|, once| which | shows `)
	seen := 0
	look := func(path string, e ast.Expr) {
		text := literal(e)
		if !regexp.MustCompile(`\b(redis-cli [A-Z]|nats (stream|consumer) )|: timerd [a-z]`).MatchString(text) {
			return
		}
		for part := range strings.SplitSeq(text, "; or") {
			found := begin.FindStringSubmatch(part)
			if found == nil {
				continue
			}
			seen++
			if glued.MatchString(regexp.MustCompile(`'[^']*'`).ReplaceAllString(found[2], "")) {
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
