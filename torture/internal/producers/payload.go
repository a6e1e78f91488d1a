package producers

import (
	"fmt"
	"strings"

	"github.com/timerd-io/timerd/event"
)

// hashField is the only field of the hashes.
const hashField = "n"

// hashPayload is the payload of a hash with a value.
func hashPayload(value string) string { return `{"` + hashField + `":"` + value + `"}` }

// hashValue is the inverse of hashPayload.
func hashValue(payload string) string {
	return strings.TrimSuffix(strings.TrimPrefix(payload, `{"`+hashField+`":"`), `"}`)
}

// counting is a payload that states an attempt.
func counting(value string, attempt int) string {
	return fmt.Sprintf(`{"n":%q,"attempt":%d}`, value, attempt)
}

// countsItself reports whether a payload states an attempt.
func countsItself(payload string) bool { return event.Attempt([]byte(payload)) > 1 }

// firesAs returns the attempt of a timer whose payload states an attempt. A number above the policy of most keys is no
// attempt.
func firesAs(stated int) int {
	if stated > len(delays())+1 {
		return 1
	}
	return stated
}
