// Package console is timerd's web page: waiting timers, firings and faults, for people and, as JSON, for programs.
//
// Each page is made in two steps: a function reads the data into a view, a plain value; a template, or the JSON
// encoder, renders the view. The pages work without the script, which only keeps numbers fresh.
//
// Users' texts are hostile: keys, payloads, reasons and errors are shown piece by piece (text.go) and escaped by
// html/template. No view holds markup, so nothing bypasses that. Requests pass the guards (guard.go, auth.go) first.
// Redis is asked in steps of a few milliseconds, by few requests at a time, over the console's own connections.
package console

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/timerd-io/timerd/internal/config"
)

// Limits of the HTTP server. A page is made within pageTimeout; the rest is for slow readers.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 15 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = time.Minute
	maxHeader      = 32 << 10 // a key in the path may have 3 KiB, and in the Referer
	maxConnections = 512
	stopGrace      = time.Second
)

// Console serves the pages of one installation. New makes one.
type Console struct {
	handler http.Handler
	jobs    *jobs // nil without actions
	streams *streams
	log     *slog.Logger
}

// New returns a console that reads from the sources. actions may be nil: then the console changes nothing.
func New(settings config.Console, sources Sources, actions *Actions, log *slog.Logger) (*Console, error) {
	files, err := newStaticFiles()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	pages, err := newTemplates(files)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	s := newShared(sources)
	c := &Console{streams: &streams{make(chan struct{}, mostStreams), make(chan struct{})}, log: log}
	if actions != nil {
		c.jobs = newJobs(log, actions.Journal)
	}
	render := &renderer{pages: pages, actions: actions != nil, state: s.state, log: log}
	c.handler = newHandler(settings, s, render, files, c.streams, actions, c.jobs)
	return c, nil
}

// Handler returns the handler of the console's requests, guards included.
func (c *Console) Handler() http.Handler { return c.handler }

// Serve answers on l until ctx ends, then ends the streams and jobs, and gives running requests a second to finish. It
// closes l.
func (c *Console) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           c.handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
	err := ServeUntil(ctx, server, limitConnections(l, maxConnections), c.close)
	if err != nil {
		err = fmt.Errorf("console on %s: %w", l.Addr(), err)
	}
	return err
}

// ServeUntil runs a server on l until ctx ends, and then gives running requests a second to finish. It calls stop when
// the server is about to end, and closes l.
func ServeUntil(ctx context.Context, server *http.Server, l net.Listener, stop func()) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		stop()
		return err
	case <-ctx.Done():
	}
	stop()
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	err := server.Shutdown(within)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	if stopped := <-served; !errors.Is(stopped, http.ErrServerClosed) {
		err = errors.Join(err, stopped)
	}
	return err
}

// close ends streams and jobs, and waits until the jobs have reported their results.
func (c *Console) close() {
	close(c.streams.closed)
	if c.jobs != nil {
		if err := c.jobs.close(); err != nil {
			c.log.Warn("console: pages or jobs have not ended in time", "err", err)
		}
	}
}
