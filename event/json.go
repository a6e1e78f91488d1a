package event

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/timerd-io/timerd/keys"
)

// maxDepth is the deepest nesting of a payload embedded as JSON. It is one less than encoding/json reads, so that Go
// consumers can read the event around it too; a deeper payload becomes text.
const maxDepth = 9999

const lowerHex = "0123456789abcdef"

// DataContentType returns the default content type of a payload: DataJSON, DataText or DataBinary. A payload that is
// not UTF-8 is DataBinary, even if it is JSON otherwise; an empty one is DataText.
func DataContentType(payload []byte) string {
	switch {
	case !utf8.Valid(payload):
		return DataBinary
	case isJSON(payload):
		return DataJSON
	default:
		return DataText
	}
}

// isJSON reports whether b is one JSON value. b must be UTF-8. It takes half the time of json.Valid.
func isJSON(b []byte) bool {
	end := scanValue(b, skipSpace(b, 0), maxDepth)
	return end >= 0 && skipSpace(b, end) == len(b)
}

// skipSpace returns the offset of the first byte other than white space, from i on.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// The scan functions return the offset after the token that begins at i, or -1 if there is no such token. The text must
// be UTF-8.

func scanValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch c := b[i]; {
	case c == '{' || c == '[':
		return scanContainer(b, i, depth)
	case c == '"':
		return scanString(b, i)
	case c == '-' || isDigit(c):
		return scanNumber(b, i)
	}
	for _, literal := range [...]string{"true", "false", "null"} {
		if bytes.HasPrefix(b[i:], []byte(literal)) {
			return i + len(literal)
		}
	}
	return -1
}

// scanContainer scans an object or an array that may nest depth levels, itself included.
func scanContainer(b []byte, i, depth int) int {
	if depth == 0 {
		return -1
	}
	object := b[i] == '{'
	closing := byte(']')
	if object {
		closing = '}'
	}
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == closing {
		return i + 1
	}
	for {
		if object {
			if i = scanString(b, i); i < 0 {
				return -1
			}
			if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
				return -1
			}
			i = skipSpace(b, i+1)
		}
		if i = scanValue(b, i, depth-1); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		if b[i] == closing {
			return i + 1
		}
		if b[i] != ',' {
			return -1
		}
		i = skipSpace(b, i+1)
	}
}

func scanString(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c < 0x20:
			return -1
		case c == '\\':
			i++
			if i >= len(b) {
				return -1
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if i += 4; i >= len(b) {
					return -1
				}
				if _, err := strconv.ParseUint(string(b[i-3:i+1]), 16, 16); err != nil {
					return -1
				}
			default:
				return -1
			}
		}
	}
	return -1
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func scanDigits(b []byte, i int) int {
	start := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func scanNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = scanDigits(b, i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = scanDigits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return scanDigits(b, i)
	}
	return i
}

// members walks the members of the JSON object in b. After next has returned false, err is nil if b is one such object
// and nothing more.
type members struct {
	b   []byte
	pos int
	err error

	name  []byte // decoded
	value []byte // the JSON value, without white space around it
	start int    // offset after the member's colon
	end   int    // offset of the comma or brace after the member
	loose bool   // white space was seen outside the last value
	last  bool   // the walk is over, or err is set
}

// next goes to the next member. Names and values are only valid until then.
func (m *members) next() bool {
	if m.last {
		return false
	}
	i := m.space(m.pos)
	if m.pos == 0 {
		if i >= len(m.b) || m.b[i] != '{' {
			return m.fail(i, "want a JSON object")
		}
		i = m.space(i + 1)
		if i < len(m.b) && m.b[i] == '}' {
			return m.finish(i + 1)
		}
	}
	nameEnd := scanString(m.b, i)
	if nameEnd < 0 {
		return m.fail(i, "want a member name in double quotes")
	}
	m.name = unquote(m.b[i:nameEnd])
	i = m.space(nameEnd)
	if i >= len(m.b) || m.b[i] != ':' {
		return m.fail(i, "want a colon after the member name")
	}
	m.start = i + 1
	valueStart := skipSpace(m.b, m.start)
	valueEnd := scanValue(m.b, valueStart, maxDepth)
	if valueEnd < 0 {
		return m.fail(valueStart, fmt.Sprintf("want a JSON value for %q", clip(string(m.name))))
	}
	m.value = m.b[valueStart:valueEnd]
	m.end = skipSpace(m.b, valueEnd)
	if m.end >= len(m.b) || m.b[m.end] != ',' && m.b[m.end] != '}' {
		return m.fail(m.end, "want a comma or a closing brace")
	}
	m.pos = m.end + 1
	if m.b[m.end] == '}' {
		m.finish(m.pos)
	}
	return m.err == nil
}

// space is skipSpace, and sets loose if there was white space.
func (m *members) space(i int) int {
	end := skipSpace(m.b, i)
	m.loose = m.loose || end > i
	return end
}

// finish ends the walk after the object's closing brace.
func (m *members) finish(i int) bool {
	m.last = true
	if i = m.space(i); i < len(m.b) {
		return m.fail(i, "want nothing after the JSON object")
	}
	return false
}

func (m *members) fail(i int, want string) bool {
	m.last = true
	if i >= len(m.b) {
		m.err = fmt.Errorf("cut short after %d bytes: %s", len(m.b), want)
	} else {
		m.err = fmt.Errorf("%q at byte %d: %s", m.b[i], i, want)
	}
	return false
}

// unquote decodes a JSON string that scanString has accepted. It returns a part of quoted if it can.
func unquote(quoted []byte) []byte {
	if !bytes.Contains(quoted, []byte(`\`)) {
		return quoted[1 : len(quoted)-1]
	}
	var text string
	_ = json.Unmarshal(quoted, &text) // cannot fail
	return []byte(text)
}

// parsePositive reads a JSON number that is a whole number from 1 to math.MaxInt32, in any notation: encoders that know
// only floating point may write 2 as 2.0.
func parsePositive(value []byte) (int, bool) {
	f, err := strconv.ParseFloat(string(value), 64)
	if err != nil || f < 1 || f > math.MaxInt32 || f != math.Trunc(f) {
		return 0, false
	}
	return int(f), true
}

// mayHold is a cheap test whether b may be an object with a member whose name contains part; names may have escapes.
func mayHold(b []byte, part string) bool {
	i := skipSpace(b, 0)
	return i < len(b) && b[i] == '{' &&
		(bytes.Contains(b, []byte(part)) || bytes.Contains(b, []byte(`\u00`)))
}

// appendEscaped appends the inside of the JSON string of s; s must be UTF-8.
func appendEscaped[S string | []byte](dst []byte, s S) []byte {
	plain := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[plain:i]...)
		plain = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', lowerHex[c>>4], lowerHex[c&15])
		}
	}
	return append(dst, s[plain:]...)
}

// appendAttribute appends the inside of a JSON string of a part of a key.
func appendAttribute(dst []byte, s string) []byte {
	return appendEscaped(dst, keys.EncodeText(s))
}

// appendString appends a member with a string as its value, unless that is empty. member is `,"name":"`.
func appendString(dst []byte, member, s string) []byte {
	if s == "" {
		return dst
	}
	return append(appendEscaped(append(dst, member...), s), '"')
}

// appendText appends a member whose value is text for people; nothing if s is empty. member precedes the text, from the
// comma to the opening quote. A character that is not allowed in a CloudEvents attribute becomes a space or U+FFFD.
func appendText(dst []byte, member, s string) []byte {
	if s == "" {
		return dst
	}
	dst = append(dst, member...)
	for i, r := range s {
		switch {
		case r < 0x20 || r >= 0x7f && r <= 0x9f:
			dst = append(dst, ' ')
		case r == utf8.RuneError || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe:
			dst = append(dst, string(utf8.RuneError)...)
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		default:
			dst = append(dst, s[i:i+utf8.RuneLen(r)]...)
		}
	}
	return append(dst, '"')
}
