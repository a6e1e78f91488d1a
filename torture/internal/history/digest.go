package history

import (
	"crypto/sha256"
	"fmt"
)

// longest is the longest payload, in bytes, that the history has in full.
const longest = 1000

// Digest returns a payload's text for the history. A long payload is represented by its size and a hash.
func Digest(payload string) string {
	if len(payload) <= longest {
		return payload
	}
	return fmt.Sprintf("%d bytes, SHA-256 %x", len(payload), sha256.Sum256([]byte(payload)))
}
