package diag

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// errDisconnected replaces the NATS client's error without a connection: that its buffer, of no bytes, is full.
var errDisconnected = errors.New("NATS is disconnected")

// Plain returns errDisconnected if that is the cause of err, and otherwise err itself.
func Plain(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return errDisconnected
	}
	return err
}
