package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
)

// healthTimeout bounds timerd health's request. /readyz answers from memory.
const healthTimeout = 5 * time.Second

func newHealth() *cobra.Command {
	return &cobra.Command{
		Use:   "health [HOST:PORT]",
		Short: "Ask a running timerd whether it is ready",
		Long: `Ask a running timerd whether it is ready, for containers without a shell. The exit code is 0 if
/readyz answers 200 within 5 seconds. Otherwise it is 1, and the command prints what does not work.
The default address is that of TIMERD_HTTP_ADDR.`,
		Example: `  timerd health
  timerd health 127.0.0.1:8080`,
		Args: arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			// Other faults in the settings of the service do not matter here.
			c, err := config.Read(config.SectionService)
			addr := c.Service.HTTPAddr
			if len(args) > 0 {
				addr = args[0]
			}
			switch {
			case addr == "":
				return errors.New("there is no /readyz to ask: TIMERD_HTTP_ADDR is off")
			case !config.IsHostPort(addr) && len(args) > 0:
				return usagef(cmd, "%q: want host:port", addr)
			case !config.IsHostPort(addr):
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
			defer cancel()
			if err := checkReady(ctx, addr); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ready")
			return err
		},
	}
}

// checkReady returns an error unless the timerd at an address is ready. An address without a host, or the address of
// all networks, means this machine.
func checkReady(ctx context.Context, addr string) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/readyz", http.NoBody)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("ask %s whether it is ready: %w", addr, errors.Unwrap(err))
	}
	defer func() { _ = response.Body.Close() }() // it was read, or the status was not 200
	const most = 16 << 10
	body, err := io.ReadAll(io.LimitReader(response.Body, most))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s is not ready, %s\n%s", addr, response.Status, strings.TrimSpace(string(body)))
	}
	return err
}
