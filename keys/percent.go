package keys

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const upperHex = "0123456789ABCDEF"

// EncodeText writes control characters, % and every byte that is not part of
// valid UTF-8 as %XX (upper-case hex): the form of a key and its parts in the
// attributes of an event. DecodeText gives the exact bytes back.
func EncodeText(s string) string {
	if isPlainText(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if isTextRune(r, size) {
			b.WriteString(s[i : i+size])
		} else {
			for j := i; j < i+size; j++ {
				writePercent(&b, s[j])
			}
		}
		i += size
	}
	return b.String()
}

// DecodeText is the inverse of EncodeText. It accepts any %XX, in upper or
// lower case, and takes every other byte as it is.
func DecodeText(s string) (string, error) {
	return decodePercent(s, func(c byte) bool { return c != '%' })
}

// isPlainText tells whether EncodeText leaves s as it is.
func isPlainText(s string) bool {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !isTextRune(r, size) {
			return false
		}
		i += size
	}
	return true
}

// isTextRune tells whether a rune, as utf8.DecodeRuneInString returned it, may
// stand unencoded in a CloudEvents attribute: not a C0 or C1 control, not %,
// not a noncharacter, valid UTF-8.
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

// decodePercent turns %XX into bytes and takes the other bytes as they are
// where plain allows them.
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
		hi, lo := unhex(s[i+1]), unhex(s[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("%q: %q at %d is not %%XX", s, s[i:i+3], i)
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	return b.String(), nil
}

// unhex returns the value of a hex digit, or -1.
func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
