package diag_test

import (
	"os/exec"
	"testing"

	"github.com/timerd-io/timerd/internal/diag"
)

// The shell reads it as the text itself, for any text.
func TestWordIsQuotedForTheShell(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "+zadd", "redis:6379/0", "'", "a b", "~app:*", "it's", `$(date)`, "`id`",
		"a;b|c&d>e", `\`, "!x", "#", "é", "-"} {
		word := diag.Word(text)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+word).Output()
		if err != nil || string(out) != text {
			t.Errorf("%q is written %s, which is %q, %v", text, word, out, err)
		}
	}
	if word := diag.Word("+zadd"); word != "+zadd" {
		t.Errorf("quoted for nothing: %s", word)
	}
}
