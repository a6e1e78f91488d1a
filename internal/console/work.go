package console

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/admin"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// mostSelected limits the timers or letters selected one by one.
const mostSelected = 1000

// Actions are the changes that a console can make, by the same code as the command line. A read-only console has none.
type Actions struct {
	Schedule *schedule.Schedule
	Timers   *admin.Timers
	Holds    *admin.Holds
	Firings  *admin.Firings
	Streams  jetstream.JetStream
	Names    keys.Names
	Journal  *admin.Journal // gets the actions; may be nil
}

var errNothingSelected = &fault{Status: http.StatusUnprocessableEntity, Title: "Nothing is selected",
	Detail: "The action was requested without a timer or a letter.",
	Fix:    "Go back and select some, or all that match."}

// actionName returns the heading of an action's page.
func actionName(do string) string {
	return map[string]string{
		"cancel": "Cancel", "fire": "Fire now", "move": "Set to another time", "replay": "Replay", "purge": "Purge",
		"hold": "Hold", "resume": "Resume",
		"resend": "Send again",
	}[do]
}

// refuse returns a fault of a field in the user's form.
func refuse(detail, fix string) error {
	return &fault{Status: http.StatusUnprocessableEntity, Title: "Not yet", Detail: detail, Fix: fix}
}

// sample returns the first of many texts.
func sample(all []string) []string {
	const most = 10
	some := slices.Clone(all[:min(len(all), most)])
	if n := len(all) - most; n > 0 {
		some = append(some, "and "+counted(int64(n), "other", "others"))
	}
	return some
}

// someTallies leaves out tallies of 0, except for the first.
func someTallies(all []Tally) []Tally {
	return slices.DeleteFunc(all, func(t Tally) bool { return t.N == 0 && t.Name != all[0].Name })
}

// selectedSeqs reads the sequences of the selected messages.
func selectedSeqs(form url.Values) (seqs []uint64, err error) {
	for _, text := range form["seq"] {
		seq, err := strconv.ParseUint(text, 10, 64)
		if err != nil || seq == 0 {
			return nil, badRequest("“"+clip(text, 50)+"” is no number of a message.", "Take the seq of the list.")
		}
		seqs = append(seqs, seq)
	}
	switch {
	case len(seqs) == 0:
		return nil, errNothingSelected
	case len(seqs) > mostSelected:
		return nil, refuse("That is too many for one selection.", "Select at most 1,000, or all that match.")
	}
	return seqs, nil
}
