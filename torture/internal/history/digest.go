package history

import (
	"crypto/sha256"
	"fmt"
)

// longest is the longest payload, in bytes, that is written down as it is.
const longest = 1000

// Digest returns what is written down of a payload: a long one by its size and a hash, which tell it from all others.
func Digest(payload string) string {
	if len(payload) <= longest {
		return payload
	}
	return fmt.Sprintf("%d bytes, SHA-256 %x", len(payload), sha256.Sum256([]byte(payload)))
}
