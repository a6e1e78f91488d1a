package browsertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	// axeFile is axe-core, where npm has put it.
	axeFile = "node_modules/axe-core/axe.min.js"
	// npmPatience bounds its installation.
	npmPatience = 2 * time.Minute
)

// axe installs axe-core in the version of package-lock.json, unless it is there, and returns its script.
func axe(t *testing.T) string {
	t.Helper()
	if !installed(t) {
		ctx, cancel := context.WithTimeout(t.Context(), npmPatience)
		defer cancel()
		cmd := exec.CommandContext(ctx, "npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund",
			"--fetch-retries=1", "--fetch-timeout=20000")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("npm ci: %v\n%s", err, out)
		}
	}
	text, err := os.ReadFile(filepath.FromSlash(axeFile))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// installed reports whether axe-core is there in the version of package-lock.json.
func installed(t *testing.T) bool {
	t.Helper()
	locked, err := os.ReadFile("package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`"node_modules/axe-core": \{\s*"version": ("[^"]+")`).FindSubmatch(locked)
	if version == nil {
		t.Fatal("package-lock.json does not name a version of axe-core")
	}
	there, err := os.ReadFile("node_modules/axe-core/package.json")
	return err == nil && strings.Contains(string(there), `"version": `+string(version[1]))
}

// finding is a rule of axe-core that a page breaks.
type finding struct {
	Rule, Impact, Help string
	Nodes              []string
}

// accessible fails the test for each fault that axe-core finds in the page: the rules of WCAG 2.2 at level AA, and
// axe-core's rules of good practice.
func (b *tab) accessible(script string) {
	b.t.Helper()
	must[any](b, fmt.Sprintf("() => { %s }", script))
	found := must[[]finding](b, `async () => {
		const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
		const result = await window.axe.run(document, {runOnly: tags, resultTypes: ["violations"]});
		return result.violations.map(v => ({
			rule: v.id, impact: v.impact, help: v.help,
			nodes: v.nodes.map(n => n.html.slice(0, 300) + "\n\t\t" + n.failureSummary.replace(/\n/g, "\n\t\t")),
		}));
	}`)
	for _, f := range found {
		b.t.Errorf("axe-core: %s (%s, %s), %d times:\n\t%s", f.Help, f.Rule, f.Impact, len(f.Nodes),
			strings.Join(f.Nodes, "\n\t"))
	}
}
