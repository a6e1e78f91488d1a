package history

import "strings"

// HoldKind is a command about a hold.
type HoldKind string

// The commands. Over is none: it says when a hold was seen to have ended by itself.
const (
	Hold        HoldKind = "hold"
	ResumeNow   HoldKind = "resume"
	ResumeRate  HoldKind = "resume --rate"
	ResumeShift HoldKind = "resume --shift"
	ResumeDead  HoldKind = "resume --dead"
	Over        HoldKind = "over"
)

// HoldOp is one command that held a namespace or let it go. Those on one namespace follow each other, and one that was
// interrupted is followed by the same again.
type HoldOp struct {
	Namespace string   `json:"namespace"`
	Kind      HoldKind `json:"kind"`
	For       int64    `json:"for,omitempty"`  // of Hold: it ends by itself after so many ms
	Rate      int64    `json:"rate,omitempty"` // of ResumeRate: timers per second
	// Outcome is OK for exit code 0: every timerd has confirmed a hold, and everything is released by a resume.
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	Invoked int64   `json:"invoked"`
	Ended   int64   `json:"ended"`
	// Since is when the hold began by Redis's clock, as the list of holds has it; 0 if that is not known.
	Since int64 `json:"since,omitempty"`
	// Unlisted says that the list did not have it right after the command that made it.
	Unlisted bool `json:"unlisted,omitempty"`
	// Unsafe says that the command warned that no replica has it.
	Unsafe bool `json:"unsafe,omitempty"`
}

// Matches tells whether a key is in a namespace of at most three parts, of which those that are left out or * are any.
func Matches(namespace, key string) bool {
	parts := strings.SplitN(key, ":", 4)
	for i, want := range strings.Split(namespace, ":") {
		if i == len(parts) || want != "*" && want != parts[i] {
			return false
		}
	}
	return true
}
