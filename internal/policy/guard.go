package policy

import (
	"errors"

	"github.com/timerd-io/timerd/keys"
)

// Guards are keys that decide at a timer's claim whether it fires; "" is none.
type Guards struct {
	Unless string // it fires only if this key does not exist
	If     string // it fires only if this key exists
}

// ErrGuard means that a key cannot be a guard.
var ErrGuard = errors.New("want a key of 1 to 1,024 bytes")

// CheckGuard returns ErrGuard for a key that cannot be a guard.
func CheckGuard(key string) error {
	if key == "" || len(key) > keys.MaxKeyBytes {
		return ErrGuard
	}
	return nil
}

// Refusal is the answer of a firing's guards at its claim. The zero Refusal lets it fire.
type Refusal struct {
	Guard string // the key
	// Missing reports whether the key did not exist, as IF demands; otherwise it existed, against UNLESS.
	Missing bool
	// Unread means that timerd could not read the key, or that it is of another slot: the next claim asks again.
	Unread bool
}

// String returns the refusal for people to read, as in "shop:order:paid:42 was there".
func (r Refusal) String() string {
	name := keys.EncodeText(r.Guard)
	switch {
	case r.Unread:
		return "timerd may not read its guard " + name
	case r.Missing:
		return name + " was not there"
	}
	return name + " was there"
}
