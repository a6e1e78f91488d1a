package diag

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"
)

// The names of the servers' processes, as ps takes them.
const (
	RedisProcess = "redis-server,valkey-server"
	NATSProcess  = "nats-server"
)

// acceptTime bounds a connection to a server that has not answered.
const acceptTime = 250 * time.Millisecond

// Frozen returns the problem of a server that has not answered in time and yet accepts connections at one of some
// addresses; nil if err is anything else than a timeout, a problem with a fix already, or no address accepts any. An
// empty network stands for TCP. It takes 250 ms for each address at most.
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
