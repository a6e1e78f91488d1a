// Package keys is the one home of names: it parses and formats timer keys, namespaces, NATS subjects and event ids, and
// spells every Redis key and channel that timerd uses. It does no I/O and imports only the standard library.
package keys

import (
	"errors"
	"fmt"
	"strings"
)

// Limits of a timer key, in bytes.
const (
	MaxKeyBytes  = 1024 // the whole key
	MaxPartBytes = 128  // each of app, module and type
)

var (
	// ErrNotTimer says that a Redis key is not of the form app:module:type:id, so it is somebody else's key.
	ErrNotTimer = errors.New("not a timer key: want app:module:type:id with four non-empty parts")
	// ErrTooLong says that a Redis key has the form of a timer key but exceeds MaxKeyBytes or, in one of its first
	// three parts, MaxPartBytes.
	ErrTooLong = errors.New("timer key too long")
)

// Key is a parsed timer key. Its parts may hold any bytes; App, Module and Type are non-empty and hold no colon, ID is
// non-empty and may hold colons.
type Key struct {
	App, Module, Type, ID string
}

// Parse splits a Redis key into the parts of a timer key. It returns ErrNotTimer for a key without the form. For a key
// with the form that is too long, it returns the parsed key and an error that wraps ErrTooLong.
func Parse(s string) (Key, error) {
	app, rest, ok := strings.Cut(s, ":")
	if !ok || app == "" {
		return Key{}, ErrNotTimer
	}
	module, rest, ok := strings.Cut(rest, ":")
	if !ok || module == "" {
		return Key{}, ErrNotTimer
	}
	typ, id, ok := strings.Cut(rest, ":")
	if !ok || typ == "" || id == "" {
		return Key{}, ErrNotTimer
	}
	k := Key{App: app, Module: module, Type: typ, ID: id}
	if len(s) > MaxKeyBytes {
		return k, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrTooLong, len(s), MaxKeyBytes)
	}
	for _, part := range [...]struct{ name, value string }{{"app", app}, {"module", module}, {"type", typ}} {
		if len(part.value) > MaxPartBytes {
			return k, fmt.Errorf("%w: its %s has %d bytes, at most %d are allowed", ErrTooLong, part.name,
				len(part.value), MaxPartBytes)
		}
	}
	return k, nil
}

// String returns the Redis key: app:module:type:id.
func (k Key) String() string { return k.App + ":" + k.Module + ":" + k.Type + ":" + k.ID }
