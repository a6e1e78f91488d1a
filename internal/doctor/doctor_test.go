package doctor_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
)

const maxPayload = 1000

// wants checks the findings of one check: "level text fix" of each, in parts.
func wants(t *testing.T, findings []diag.Finding, check string, level diag.Level, texts ...string) {
	t.Helper()
	for _, f := range findings {
		all := f.Text + " | " + f.Fix
		if f.Check != check || f.Level != level {
			continue
		}
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(all, text) }) {
			if level != diag.OK && f.Fix == "" {
				t.Errorf("%s: no fix in %+v", check, f)
			}
			return
		}
	}
	t.Errorf("want %s of %s with %q, got:\n%s", level, check, texts, describe(findings))
}

func describe(findings []diag.Finding) string {
	var b strings.Builder
	for _, f := range findings {
		b.WriteString("\t" + string(f.Level) + " " + f.Check + ": " + f.Text + " | " + f.Fix + "\n")
	}
	return b.String()
}

func namespaces(t *testing.T, s string) keys.Namespaces {
	t.Helper()
	ns, err := keys.ParseNamespaces(s)
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
