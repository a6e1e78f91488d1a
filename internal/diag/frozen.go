package diag

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"
)

// The names of the servers' processes, for ps.
const (
	RedisProcess = "redis-server,valkey-server"
	NATSProcess  = "nats-server"
)

// acceptTime bounds a connection to a silent server.
const acceptTime = 250 * time.Millisecond

// Frozen returns the problem of a server that did not answer in time but accepts connections at one of some addresses.
// It returns nil if err is no timeout, or has a fix already, or if no address accepts connections. An empty network
// means TCP. It takes at most 250 ms per address.
func Frozen(err error, process, network string, addrs ...string) *Fault {
	late, ok := errors.AsType[net.Error](err)
	_, explained := errors.AsType[Fixable](err)
	if explained || !ok || !late.Timeout() {
		return nil
	}
	for _, addr := range addrs {
		ctx, cancel := context.WithTimeout(context.Background(), acceptTime)
		conn, dialErr := new(net.Dialer).DialContext(ctx, cmp.Or(network, "tcp"), addr)
		cancel()
		if dialErr != nil {
			continue
		}
		_ = conn.Close() // nothing was sent
		return &Fault{
			What: "it accepts connections and does not answer: " + late.Error(),
			Remedy: "look at its process, on its machine: ps -o pid,stat,time,args -C " + process +
				" (T: stopped, kill -CONT goes on; D: it waits for its disk; R: it is busy)",
			Err: err,
		}
	}
	return nil
}
