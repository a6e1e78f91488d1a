// Package doctor looks at the servers that timerd needs and says what is wrong with them, each with its fix. It changes
// nothing: what it writes to Redis to learn its rights is a probe key of its own, which it deletes.
package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK   Level = "ok"
	Warn Level = "warn" // timerd works, but keeps less than it could
	Fail Level = "fail" // timerd does not start, or does not keep its guarantees
)

// Finding is what one check found.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"`
	Text  string `json:"text"`          // what is so
	Fix   string `json:"fix,omitempty"` // what to do, mostly a command or a line of configuration
}

// report collects findings.
type report []Finding

func (r *report) ok(check, format string, args ...any) {
	*r = append(*r, Finding{Level: OK, Check: check, Text: fmt.Sprintf(format, args...)})
}

func (r *report) warn(check, fix, format string, args ...any) {
	*r = append(*r, Finding{Level: Warn, Check: check, Text: fmt.Sprintf(format, args...), Fix: fix})
}

func (r *report) fail(check, fix, format string, args ...any) {
	*r = append(*r, Finding{Level: Fail, Check: check, Text: fmt.Sprintf(format, args...), Fix: fix})
}

// info is an INFO reply by field.
type info map[string]string

func parseInfo(reply string) info {
	fields := info{}
	for line := range strings.Lines(reply) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// number returns a field as a number, 0 if it is none.
func (i info) number(name string) int64 {
	n, _ := strconv.ParseInt(i[name], 10, 64)
	return n
}
