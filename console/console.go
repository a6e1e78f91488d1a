// Package console is timerd's web page: what waits, what fires and what went wrong, for people and, as JSON, for programs.
//
// Each page is made in two steps: a function reads what the page shows into a view, a plain value; a template, or the JSON
// encoder, renders the view. The pages work without the script, which only keeps numbers fresh.
//
// What belongs to users is hostile: keys, payloads, reasons and error texts are shown piece by piece (text.go) and escaped by
// html/template; there is no way around it, as no view holds markup. Requests pass the guards (guard.go, auth.go) first. Redis is
// asked in steps of a few milliseconds, by few requests at a time, over connections of the console's own.
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

// Console serves the pages of one installation. New makes one; Run has to run while its Handler is used.
type Console struct {
	settings config.Console
	sources  Sources
	actions  *Actions // nil: it looks only
	log      *slog.Logger

	pages  *templates
	files  *staticFiles
	guard  *guard
	state  *cache[*summary]
	due    *cache[*forecast]
	parts  *cache[[]byte] // what is live on the overview
	jobs   *jobs          // nil where actions is
	closed chan struct{}

	streams chan struct{} // holds one for each that is open
}

// New returns a console that reads from the sources. Without actions, which may be nil, there is no way to change anything.
func New(settings config.Console, sources Sources, actions *Actions, log *slog.Logger) (*Console, error) {
	files, err := newStaticFiles()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	pages, err := newTemplates(files)
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c := &Console{
		settings: settings, sources: sources, actions: actions, log: log,
		pages: pages, files: files, guard: newGuard(settings, log), closed: make(chan struct{}),
	}
	c.state = newCache(stateAge, c.readSummary)
	c.due = newCache(forecastAge, c.readForecast)
	c.parts = newCache(stateAge, c.readParts)
	c.streams = make(chan struct{}, mostStreams)
	if actions != nil {
		c.jobs = newJobs(log)
	}
	return c, nil
}

// Serve answers on l until ctx ends, then ends the streams and jobs, and gives the requests under way a second to finish. It
// closes l.
func (c *Console) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           c.Handler(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(limitConnections(l, maxConnections)) }()
	select {
	case err := <-served:
		c.close()
		return fmt.Errorf("console on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	c.close()
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

// close ends what outlives requests, and waits for the jobs to say what they have done.
func (c *Console) close() {
	close(c.closed)
	if c.jobs != nil {
		if err := c.jobs.close(); err != nil {
			c.log.Warn("console: left behind", "err", err)
		}
	}
}
