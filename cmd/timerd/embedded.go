package main

import (
	"cmp"
	"context"
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
	// embeddedAddr is where the embedded NATS server listens for consumers unless
	// the configuration says otherwise: where NATS clients look for one.
	embeddedAddr = "127.0.0.1:4222"
	// embeddedReady is how long it may take to open its streams. A large stream
	// whose index was lost is read as a whole.
	embeddedReady = 30 * time.Second
	// embeddedSync is how much a power cut may lose of what was acknowledged; the
	// same as of Redis with appendfsync everysec. The server's own default is 2
	// minutes. Syncing each message would bound the rate by the disk, and timers
	// are no safer than Redis keeps them.
	embeddedSync = time.Second
	// natsMaxPayload is the server's own bound on max_payload.
	natsMaxPayload = 64 << 20
)

// embeddedNATS is a NATS server within this process.
type embeddedNATS struct {
	*server.Server
	lock *os.File
}

// startEmbedded starts a server with its streams in config.DataDir. An address
// that the configuration names must be free; the default address is given up with
// a warning when it is taken, and then only this process reaches the server.
func startEmbedded(config natsConfig, maxPayload int, log *slog.Logger) (*embeddedNATS, error) {
	lock, err := lockDir(config.DataDir)
	if err != nil {
		return nil, err
	}
	ns, err := startNATSServer(config, maxPayload, log)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &embeddedNATS{ns, lock}, nil
}

func startNATSServer(config natsConfig, maxPayload int, log *slog.Logger) (*server.Server, error) {
	o := &server.Options{
		ServerName:             clientName,
		DontListen:             true,
		NoSigs:                 true,
		JetStream:              true,
		StoreDir:               config.DataDir,
		SyncInterval:           embeddedSync,
		DisableJetStreamBanner: true,
		// Room for the payload in base64 and the rest of the event.
		MaxPayload: int32(min(max(server.MAX_PAYLOAD_SIZE, 2*maxPayload), natsMaxPayload)),
	}
	if err := listenOn(o, config, log); err != nil {
		return nil, err
	}
	ns, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	said := &natsServerLogger{log: log}
	ns.SetLoggerV2(said, log.Enabled(context.Background(), slog.LevelDebug), false, false)
	ns.Start()
	if said.fatal() == "" && ns.ReadyForConnections(embeddedReady) {
		return ns, nil
	}
	ns.Shutdown()
	ns.WaitForShutdown()
	return nil, fmt.Errorf("embedded NATS server in %s: %s", config.DataDir,
		cmp.Or(said.fatal(), fmt.Sprintf("not ready within %v", embeddedReady)))
}

// listenAddr returns the address on which the embedded server listens.
func (c natsConfig) listenAddr() string { return cmp.Or(c.Listen, embeddedAddr) }

// fromOutside returns how another process connects to the embedded server.
func (c natsConfig) fromOutside() natsConfig {
	url := "nats://" + c.listenAddr()
	return natsConfig{URL: url, Shown: url, Streams: c.Streams}
}

// listenOn has the server listen on an address, if it is free.
func listenOn(o *server.Options, config natsConfig, log *slog.Logger) error {
	address := config.listenAddr()
	l, err := net.Listen("tcp", address)
	if err != nil && config.Listen == "" {
		log.Warn("the embedded NATS server does not listen, so no consumer can connect to it; "+
			"name a free address with TIMERD_NATS_URL=embedded://host:port", "address", address, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("embedded NATS server: TIMERD_NATS_URL=%s://%s: %w", embedded, address, err)
	}
	bound, ok := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil || !ok {
		return fmt.Errorf("embedded NATS server: free %v again: %w", l.Addr(), err)
	}
	o.DontListen, o.Host, o.Port = false, bound.IP.String(), bound.Port
	return nil
}

// stop shuts the server down and returns once its files are closed.
func (e *embeddedNATS) stop() error {
	e.Shutdown()
	e.WaitForShutdown()
	return e.lock.Close()
}

// lockDir makes a directory where there is none and locks it for this process:
// two servers on the same files would destroy them. Closing the file unlocks it,
// and so does the end of the process.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("TIMERD_DATA_DIR: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "timerd.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("TIMERD_DATA_DIR: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another timerd uses it; give each one a directory of its own")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("TIMERD_DATA_DIR=%s: %w", dir, err), f.Close())
	}
	return f, nil
}
