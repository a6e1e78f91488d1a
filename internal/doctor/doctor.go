// Package doctor looks at the servers that timerd needs and says what is wrong with them, each with its fix. It changes
// nothing: what it writes to Redis to learn its rights is a probe key of its own, which it deletes.
package doctor

import (
	"strconv"
	"strings"
)

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
