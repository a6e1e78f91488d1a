// Package embedded runs nats-server, and is the only code to do so: the server of TIMERD_NATS_URL=embedded, with its
// streams in TIMERD_DATA_DIR; any other server within this process; or a process that is nothing but a server.
package embedded

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// readyTimeout bounds the opening of the streams. A large stream whose index was lost is read as a whole.
	readyTimeout = 30 * time.Second
	// syncInterval is the time of acknowledged messages that a power cut may lose, as much as Redis loses with
	// appendfsync everysec. The server's own default is 2 minutes. Syncing each message would bound the rate by the
	// disk, and timers are no safer than Redis keeps them.
	syncInterval = time.Second
	// maxPayloadBound is the server's own bound on max_payload.
	maxPayloadBound = 64 << 20
)

// ErrInUse means that another process runs the server of a data directory.
var ErrInUse = errors.New("another timerd uses it; give each one a directory of its own")

// Server is a running server. A connection reaches it through nats.InProcessServer, listening or not, with the
// credentials of the configuration if there are any.
type Server struct {
	*server.Server
	lock *os.File
}

// Options are the settings of a server.
type Options struct {
	// Dir keeps the streams. No other process may use it at the same time.
	Dir string
	// User and Password are the credentials for clients; without a User none are needed.
	User, Password string
	// Address is the host:port to listen on. If the address is taken: Start returns an error if Named is set, and
	// otherwise logs a warning; then only this process reaches the server.
	Address string
	Named   bool
	// MaxPayload is a timer's limit of payload, in bytes.
	MaxPayload int
}

// Start starts a server. The caller stops it.
func Start(ctx context.Context, opts Options, log *slog.Logger) (*Server, error) {
	lock, err := lockDir(opts.Dir)
	if err != nil {
		return nil, err
	}
	ns, err := start(ctx, opts, log)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	if err := leaveName(lock, ns.ID()); err != nil {
		Shutdown(ns)
		return nil, errors.Join(err, lock.Close())
	}
	return &Server{ns, lock}, nil
}

func start(ctx context.Context, opts Options, log *slog.Logger) (*server.Server, error) {
	o := &server.Options{
		ServerName:             "timerd",
		DontListen:             true,
		NoSigs:                 true,
		JetStream:              true,
		StoreDir:               opts.Dir,
		SyncInterval:           syncInterval,
		DisableJetStreamBanner: true,
		// Room for the payload in base64 and the rest of the event.
		MaxPayload: int32(min(max(server.MAX_PAYLOAD_SIZE, 2*opts.MaxPayload), maxPayloadBound)),
	}
	if opts.User != "" {
		o.CustomClientAuthentication = login{opts.User, opts.Password}
	}
	if err := listen(o, opts, log); err != nil {
		return nil, err
	}
	ns, err := Run(ctx, o, func(level slog.Level, text string) {
		log.Log(context.Background(), level, text, "source", "nats-server") //nolint:sloglint // the server's own text
	}, log.Enabled(ctx, slog.LevelDebug), readyTimeout)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server in %s: %w", opts.Dir, err)
	}
	return ns, nil
}

// listen makes the server listen on an address, if the address is free.
func listen(o *server.Options, opts Options, log *slog.Logger) error {
	l, err := net.Listen("tcp", opts.Address)
	if err != nil && !opts.Named {
		log.Warn("the embedded NATS server does not listen, so no consumer can connect to it; "+
			"name a free address with TIMERD_NATS_URL=embedded://host:port", "address", opts.Address, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("embedded NATS server: TIMERD_NATS_URL: listen on %s: %w", opts.Address, err)
	}
	bound, ok := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil || !ok {
		return fmt.Errorf("embedded NATS server: free %v again: %w", l.Addr(), err)
	}
	o.DontListen, o.Host, o.Port = false, bound.IP.String(), bound.Port
	return nil
}

// login lets one user in. It compares the password itself: the server would treat a password that begins like a bcrypt
// hash as a hash.
type login struct{ user, password string }

// Check implements [server.Authentication].
func (l login) Check(client server.ClientAuthentication) bool {
	given := client.GetOpts()
	return same(given.Username, l.user)&same(given.Password, l.password) == 1
}

// same returns 1 if two texts are the same, 0 otherwise. Its duration reveals nothing about them.
func same(a, b string) int {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:])
}

// Stop shuts the server down and returns once its files are closed.
func (s *Server) Stop() error {
	Shutdown(s.Server)
	return s.lock.Close()
}

// lockFile is the name of the file in a data directory that its server locks.
const lockFile = "timerd.lock"

// Inspect locks the file too, for some microseconds.
const (
	lockTries = 5
	lockPause = 20 * time.Millisecond
)

// lockDir creates a directory if needed and locks it for this process: two servers on the same files would destroy
// them. Closing the file unlocks it, and so does the end of the process.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("TIMERD_DATA_DIR: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("TIMERD_DATA_DIR: %w", err)
	}
	for try := 1; ; try++ {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || try == lockTries {
			break
		}
		time.Sleep(lockPause)
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("TIMERD_DATA_DIR=%s: %w", dir, err), f.Close())
	}
	return f, nil
}
