package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/internal/service"
	"github.com/timerd-io/timerd/internal/yamlfile"
)

// endpointsHelp describes the file of endpoints.
const endpointsHelp = `The file is YAML. It has a list endpoints:, and optionally

  group          the name of the group of processes that share the work (deliver)
  start          the first events for a new group: all, now, or a time in RFC 3339 (all)
  version        a number, greater in each newer file; without one the time of the file decides

An endpoint has

  match          app[:module[:type]]: its timers; the first endpoint that matches gets the event
  url            the URL to call, or {data.NAME} for a URL in each payload
  secrets        a list of env:NAME or file:PATH, each with whsec_ and 24 to 64 bytes in base64;
                 several while one is replaced
  timeout        of a call (15s)
  concurrency    calls at a time, for each host and process (64)
  rate           calls over time, for each host and process, such as 100/s; no limit by default
  headers        further headers; a value may be env:NAME or file:PATH, if url or hosts says
                 who gets it
  body           event, the CloudEvent, or data, the payload alone (event)
  schemes        the allowed schemes of a URL, http and https (both)
  hosts          the allowed hosts of a URL, such as [hooks.example.com, "*.example.org"] (any)
  ports          the allowed ports of a URL: a list, or any (any; for URLs in payloads [80, 443])
  allow_private  allowed private and other special addresses: [10.0.0.0/8] (none)
  deny           refused addresses, even if allowed by other fields: [10.0.0.1] (none)
  ca             a PEM file of certificate authorities, in place of the system's
  expire         how long a delivery may be postponed, from its first event or its replay (72h)
`

func newDeliver() *cobra.Command {
	var file string
	var check bool
	calls := deliver.DefaultCalls
	cmd := &cobra.Command{
		Use:   "deliver --config FILE",
		Short: "Call HTTP endpoints with firings: webhooks",
		Long: `Call HTTP endpoints with firings until SIGTERM or SIGINT: webhooks, signed as in Standard Webhooks.
A failed call is tried again by the policy of TIMERD_RETRY, and becomes a dead letter after the last
attempt. Any number of processes share the work.

` + endpointsHelp + `
All processes of a group use the newest file: a process with an older file takes no events, and is
not ready, until it has the newest. After SIGHUP the file is read again. If the new file has faults,
they are logged and nothing changes. HTTPS_PROXY, HTTP_PROXY and NO_PROXY name the proxies.`,
		Example: `  timerd deliver --config /etc/timerd/webhooks.yaml --check
  timerd deliver --config /etc/timerd/webhooks.yaml`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usagef(cmd, "--config is missing: want a YAML file of endpoints")
			}
			if calls < 1 {
				return usagef(cmd, "--calls=%d: want at least 1", calls)
			}
			load := func() (*deliver.Config, error) { return loadEndpoints("--config", file) }
			if check {
				return checkEndpoints(cmd, load)
			}
			return runDelivery(cmd, load, calls)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the file of endpoints")
	cmd.Flags().BoolVar(&check, "check", false, "read the file, print every fault, and make no calls")
	cmd.Flags().IntVar(&calls, "calls", calls, "calls at a time, of all endpoints")
	return cmd
}

// runDelivery delivers until the command is asked to stop.
func runDelivery(cmd *cobra.Command, load func() (*deliver.Config, error), calls int) error {
	c, log, err := commandConfig(cmd, config.SectionNATS|config.SectionDeliver)
	if err != nil {
		return err
	}
	if _, err := load(); err != nil {
		return refuseEndpoints(cmd, err)
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	err = service.Delivery{Config: c, Version: buildText(), Calls: calls, Load: load, Reload: reload,
		Logger: log}.Run(cmd.Context())
	if cmd.Context().Err() != nil && errors.Is(err, context.Canceled) {
		return nil // asked to stop before the start
	}
	return err
}

// endpointFaults are the faults of a file of endpoints.
type endpointFaults struct {
	file   string
	faults yamlfile.Faults
}

func (e *endpointFaults) Error() string {
	lines := make([]string, len(e.faults))
	for i, f := range e.faults {
		lines[i] = fmt.Sprintf("%s: %s", e.file, f)
	}
	return strings.Join(lines, "\n")
}

// loadEndpoints reads the file of endpoints that a flag names. Its error lists all faults.
func loadEndpoints(flag, file string) (*deliver.Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	defer func() { _ = f.Close() }()
	about, err := f.Stat() // before the read: a write during the read makes the file newer
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	endpoints, faults := deliver.Parse(text, config.Variable)
	if len(faults) > 0 {
		return nil, &endpointFaults{file, faults}
	}
	endpoints.File.Changed = about.ModTime()
	return endpoints, nil
}

// refuseEndpoints prints the faults of the file, and ends the command.
func refuseEndpoints(cmd *cobra.Command, err error) error {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %s\n", line)
	}
	return exitCode(exitUsage)
}

// checkEndpoints prints the content of a file, or its faults.
func checkEndpoints(cmd *cobra.Command, load func() (*deliver.Config, error)) error {
	endpoints, err := load()
	if err != nil {
		return refuseEndpoints(cmd, err)
	}
	table := tableFor(cmd.OutOrStdout(), true, column{title: "MATCH"}, column{title: "TO", least: 20},
		column{title: "BODY"}, column{title: "SIGNED"})
	for _, e := range endpoints.Endpoints {
		signed := "yes"
		if !e.Signs() {
			signed = "no"
		}
		table.row(e.Match, e.To(), e.Body, signed)
	}
	return table.flush()
}
