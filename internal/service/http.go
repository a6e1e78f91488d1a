package service

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/timerd-io/timerd/internal/console"
	"github.com/timerd-io/timerd/internal/diag"
)

// newHTTPHandler returns /healthz, /readyz and /metrics.
//
//   - /healthz is 200 as long as the process answers: restart it when it is not.
//   - /readyz is 200 only while every check passes; its lines name each check with
//     its fault. Another line reports timers set aside.
//   - /metrics has the registry's metrics, for Prometheus.
func newHTTPHandler(ready *readiness, metrics registry) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "ok\n")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		all, status := ready.state(), http.StatusOK
		if all.Failed() {
			status = http.StatusServiceUnavailable
		}
		var b strings.Builder
		for _, f := range all {
			failed := ""
			if f.Level == diag.Fail {
				failed = "failed: "
			}
			fmt.Fprintf(&b, "%s: %s%s\n", f.Check, failed, strings.ReplaceAll(f.String(), "\n", "; "))
		}
		writeText(w, status, b.String())
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{Registry: metrics}))
	return mux
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client is gone
}

// listen listens on the address in a variable. It returns nil for off.
func listen(ctx context.Context, variable, addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; choose another address, or off", variable, err)
	}
	return l, nil
}

// shownAddr formats a listener's address for the log: off for none.
func shownAddr(format string, l net.Listener) string {
	if l == nil {
		return "off"
	}
	return fmt.Sprintf(format, l.Addr())
}

// serveHTTP answers on l until ctx ends, and then gives the requests under way
// a second to finish. It closes l. Without an l it waits for the end of ctx.
func serveHTTP(ctx context.Context, l net.Listener, handler http.Handler, log *slog.Logger) error {
	if l == nil {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	err := console.ServeUntil(ctx, server, l, func() {})
	if err != nil {
		err = fmt.Errorf("HTTP server on %s: %w", l.Addr(), err)
	}
	return err
}
