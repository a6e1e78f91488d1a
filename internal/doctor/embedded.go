package doctor

import (
	"context"
	"net"

	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/embedded"
)

// littleSpace is the free space that the embedded server's disk should have, in bytes, and noSpace the space that it
// must have.
const littleSpace, noSpace = 1e9, 1e8

// otherAddress is the fix if the embedded server cannot listen.
const otherAddress = "name a free address with TIMERD_NATS_URL=embedded://host:port"

// dataDir checks the directory of the embedded server. It returns false if further checks are pointless.
func dataDir(dir string, r *diag.Findings) (embedded.State, bool) {
	state, err := embedded.Inspect(dir)
	free := showBytes(float64(state.Free))
	switch {
	case err != nil:
		r.Fail("let TIMERD_DATA_DIR name a directory that timerd's user may read and write, or may make", "%v", err)
		return state, false
	case state.Free < noSpace:
		r.Fail("make room on the disk of TIMERD_DATA_DIR, or give it a larger one",
			"%s is on a disk with %s left: a full one takes no events", dir, free)
	case state.Free < littleSpace:
		r.Warn("make room on the disk of TIMERD_DATA_DIR, or give it a larger one", "%s is on a disk with %s left", dir,
			free)
	case !state.Exists:
		r.OK("%s is not there yet: timerd makes it at its start; %s free", dir, free)
	default:
		r.OK("%s; %s free", dir, free)
	}
	return state, true
}

// openEmbedded connects to the embedded server of a running timerd. If no timerd runs, it returns nil and the reason. A
// server of somebody else may listen at that address.
func openEmbedded(ctx context.Context, conn connect.Connector, c config.NATS,
	state embedded.State) (*nats.Conn, diag.Finding) {
	target := c.FromOutside()
	var r diag.Findings
	if !state.Running {
		address(ctx, c, &r)
		return nil, r[0]
	}
	nc, err := conn.NATS(ctx, target)
	switch {
	case err != nil && connect.NATSRefused(err):
		r.Fail("give the user and the password with which the running timerd was started: "+
			"TIMERD_NATS_URL=embedded://user:password@host:port", "%v", err)
	case err == nil && isServer(nc, state.Server):
		return nc, diag.Finding{}
	case err == nil:
		nc.Close()
		r.Warn(otherAddress+", and restart timerd",
			"a timerd runs the server of TIMERD_DATA_DIR, and another server listens at %s: no consumer reaches "+
				"timerd's, and it is not checked", target.Shown)
	default:
		r.Warn(otherAddress+", and restart timerd",
			"a timerd runs the server of TIMERD_DATA_DIR, which does not answer, so it is not checked: %v", err)
	}
	return nil, r[0]
}

// address checks whether the embedded server could listen.
func address(ctx context.Context, c config.NATS, r *diag.Findings) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.ListenAddr())
	switch {
	case err == nil:
		_ = l.Close() // nobody has connected
		r.Warn("start timerd, then run this again", "embedded; it cannot be checked, because no timerd runs it now")
	case c.Listen == "":
		r.Warn(otherAddress, "embedded; it will not listen, so that no consumer can connect to it: %v", err)
	default:
		r.Fail(otherAddress, "embedded; timerd cannot start it: %v", err)
	}
}

// isServer reports whether a connection leads to the server with an id; "" is an unknown id.
func isServer(nc *nats.Conn, id string) bool { return id == "" || nc.ConnectedServerId() == id }
