package history

import "strings"

// HoldKind is a command about a hold.
type HoldKind string

// The commands. Over is no command: it marks the time at which a hold was found to have ended by itself.
const (
	Hold        HoldKind = "hold"
	ResumeNow   HoldKind = "resume"
	ResumeRate  HoldKind = "resume --rate"
	ResumeShift HoldKind = "resume --shift"
	ResumeDead  HoldKind = "resume --dead"
	Over        HoldKind = "over"
)

// HoldOp is one command that held or resumed a namespace. Commands on one namespace come one after the other, and an
// interrupted command is repeated.
type HoldOp struct {
	Namespace string   `json:"namespace"`
	Kind      HoldKind `json:"kind"`
	For       int64    `json:"for,omitempty"`  // of Hold: it ends by itself after this time, in ms
	Rate      int64    `json:"rate,omitempty"` // of ResumeRate: timers per second
	// Outcome is OK for exit code 0: then every timerd has confirmed a hold, or a resume has released everything.
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	Invoked int64   `json:"invoked"`
	Ended   int64   `json:"ended"`
	// Since is the beginning of the hold by Redis's clock, from the list of holds; 0 if unknown.
	Since int64 `json:"since,omitempty"`
	// Unlisted means that the list of holds lacked the hold right after its command.
	Unlisted bool `json:"unlisted,omitempty"`
	// Unsafe means that the command warned that no replica has the hold.
	Unsafe bool `json:"unsafe,omitempty"`
}

// Matches reports whether a key is in a namespace of at most three parts; * or a part left out stands for any.
func Matches(namespace, key string) bool {
	parts := strings.SplitN(key, ":", 4)
	for i, want := range strings.Split(namespace, ":") {
		if i == len(parts) || want != "*" && want != parts[i] {
			return false
		}
	}
	return true
}
