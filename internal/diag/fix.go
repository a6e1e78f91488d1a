package diag

import (
	"slices"
	"strings"
)

// Step is a part of a fix: an instruction, or a command to be pasted into a shell.
type Step struct {
	Text    string `json:"text"`
	Command bool   `json:"command"`
}

// Steps splits a fix into its instructions and commands. Together they are the fix.
func Steps(fix string) (steps []Step) {
	words, last := 0, 0 // where the instruction begins, and where the search goes on
	for last < len(fix) {
		if !isCommand(fix[last:]) {
			at := strings.Index(fix[last:], ": ")
			if at < 0 {
				break
			}
			last += at + len(": ")
			continue
		}
		if words < last {
			steps = append(steps, Step{Text: fix[words:last]})
		}
		words = last + commandLength(fix[last:])
		steps = append(steps, Step{fix[last:words], true})
		last = words
	}
	if words < len(fix) {
		steps = append(steps, Step{Text: fix[words:]})
	}
	return steps
}

// isCommand reports whether a text begins with a command, not with a sentence about one of these programs.
func isCommand(text string) bool {
	program, rest, _ := strings.Cut(text, " ")
	switch program {
	case "redis-cli":
		return rest != "" && (rest[0] == '-' || rest[0] >= 'A' && rest[0] <= 'Z')
	case "nats":
		return strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "stream ") ||
			strings.HasPrefix(rest, "consumer ")
	case "timerd":
		verb, _, _ := strings.Cut(rest, " ")
		return slices.Contains([]string{"cancel", "dead", "deliveries", "doctor", "hold", "holds", "ls", "resume",
			"set", "status", "watch"}, verb)
	}
	return false
}

// commandLength returns the length of the command at the beginning of a text: up to another way to fix the problem.
// Texts in quotes are part of it.
func commandLength(text string) int {
	quoted := false
	for i := range len(text) {
		switch {
		case text[i] == '\'':
			quoted = !quoted
		case !quoted && strings.HasPrefix(text[i:], "; or"):
			return i
		}
	}
	return len(text)
}

// Runbook returns the address of the row about a check of an installation in the runbook.
func Runbook(check string) string {
	return "https://github.com/timerd-io/timerd/blob/main/docs/runbook.md#" + strings.ReplaceAll(check, " ", "-")
}
