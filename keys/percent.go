package keys

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const upperHex = "0123456789ABCDEF"

// EncodeText writes control characters, % and every byte that is not part of valid UTF-8 as %XX (upper-case hex): the
// form of a key and its parts in the attributes of an event. DecodeText gives the exact bytes back.
func EncodeText(s string) string {
	var b strings.Builder
	written := 0 // bytes of s already in b
	for i := 0; i < len(s); {
		start := i
		r, size := utf8.DecodeRuneInString(s[i:])
		i += size
		if isTextRune(r, size) {
			continue
		}
		b.WriteString(s[written:start])
		written = i
		for _, c := range []byte(s[start:i]) {
			writePercent(&b, c)
		}
	}
	if written == 0 {
		return s
	}
	b.WriteString(s[written:])
	return b.String()
}

// DecodeText is the inverse of EncodeText. It accepts any %XX, in upper or lower case, and takes every other byte as it
// is.
func DecodeText(s string) (string, error) {
	return decodePercent(s, func(c byte) bool { return c != '%' })
}

// isTextRune reports whether a rune, as utf8.DecodeRuneInString returned it, may stand unencoded in a CloudEvents
// attribute: not a C0 or C1 control, not %, not a noncharacter, valid UTF-8.
func isTextRune(r rune, size int) bool {
	switch {
	case r == utf8.RuneError && size <= 1:
		return false
	case r < 0x20 || r >= 0x7f && r <= 0x9f || r == '%':
		return false
	case r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe:
		return false
	}
	return true
}

func writePercent(b *strings.Builder, c byte) {
	b.WriteByte('%')
	b.WriteByte(upperHex[c>>4])
	b.WriteByte(upperHex[c&15])
}

// decodePercent turns %XX into bytes and keeps the other bytes that plain allows.
func decodePercent(s string, plain func(byte) bool) (string, error) {
	var b strings.Builder
	b.Grow(len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c != '%' {
			if !plain(c) {
				return "", fmt.Errorf("%q: byte %q at %d must be percent-encoded", s, c, i)
			}
			b.WriteByte(c)
			continue
		}
		if i+2 >= len(s) {
			return "", fmt.Errorf("%q: %%XX cut short at %d", s, i)
		}
		decoded, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", fmt.Errorf("%q: %q at %d is not %%XX", s, s[i:i+3], i)
		}
		b.WriteByte(byte(decoded))
		i += 2
	}
	return b.String(), nil
}

// Abbreviate returns a key for a log or an error: cut after 100 bytes if it is longer, with its length.
func Abbreviate(key string) string {
	const most = 100
	if len(key) <= most {
		return key
	}
	return fmt.Sprintf("%s… (%d bytes)", key[:most], len(key))
}
