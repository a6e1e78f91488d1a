package keys

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
)

// MaxEventIDBytes is the maximum length of an event id; a longer one is replaced by its hash.
const MaxEventIDBytes = 512

// EventID returns the id of the firing of key that was due at the given unix milliseconds: key@due.attempt. Bytes of
// the key outside ! to ~, and %, are written %XX, because NATS trims and rewrites white space in headers. An id over
// MaxEventIDBytes becomes "sha256:" and the hex digest of the long form. The same firing has the same id always, and
// two firings never share one.
func EventID(key string, due int64, attempt int) string {
	b := make([]byte, 0, len(key)+32)
	for i := range len(key) {
		if c := key[i]; c >= '!' && c <= '~' && c != '%' {
			b = append(b, c)
		} else {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	b = append(b, '@')
	b = strconv.AppendInt(b, due, 10)
	b = append(b, '.')
	b = strconv.AppendInt(b, int64(attempt), 10)
	if len(b) > MaxEventIDBytes {
		return fmt.Sprintf("sha256:%x", sha256.Sum256(b))
	}
	return string(b)
}

// ParseEventID returns the key, the due time in unix ms and the attempt of an id of EventID. ok is false if it is none,
// or a hash.
func ParseEventID(id string) (key string, due int64, attempt int, ok bool) {
	at := strings.LastIndexByte(id, '@')
	if at < 0 {
		return "", 0, 0, false
	}
	first, second, _ := strings.Cut(id[at+1:], ".")
	due, err := strconv.ParseInt(first, 10, 64)
	if err == nil {
		attempt, err = strconv.Atoi(second)
	}
	if err == nil {
		key, err = DecodeText(id[:at])
	}
	if err != nil || EventID(key, due, attempt) != id {
		return "", 0, 0, false
	}
	return key, due, attempt, true
}
