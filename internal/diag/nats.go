package diag

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// errDisconnected stands for what the NATS client says where there is no connection: that its buffer, of no bytes, is full.
var errDisconnected = errors.New("NATS is disconnected")

// Plain returns an error that an operator understands: that NATS is disconnected, if that is the cause, and otherwise err itself.
func Plain(err error) error {
	if errors.Is(err, nats.ErrReconnectBufExceeded) {
		return errDisconnected
	}
	return err
}
