package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// statusTimeout bounds all that is asked. What has not been answered by then cannot be told.
const statusTimeout = 4 * time.Second

func newStatus() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who serves the timers, what waits, and what is wrong",
		Long: `Show the state of the installation. What is wrong comes first, with what to do. Then come the
timerds that are alive; how many timers are pending, owed (due, and claimed by nobody) and firing
(claimed, and not acknowledged by NATS); and the streams. Where Redis or NATS does not answer, the
rest is shown.

The exit code is 1 if a line says fail: timers do not fire, or part of the state cannot be told.`,
		Example: `  timerd status
  timerd status --json`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			report, err := gatherStatus(cmd)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				err = printStatus(cmd.OutOrStdout(), report)
			}
			if err == nil && report.Failed() {
				err = exitCode(exitFailed)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// gatherStatus asks the servers that answer. Its error is one of the configuration.
func gatherStatus(cmd *cobra.Command) (*status.Report, error) {
	c, _, err := commandConfig(cmd, config.SectionRedis|config.SectionNATS)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
	defer cancel()
	conn := connect.Connector{Logger: slog.New(slog.DiscardHandler)} // what fails is in the report
	from := status.Sources{Streams: c.Streams()}
	var rdb redis.UniversalClient
	var wg sync.WaitGroup
	wg.Go(func() { rdb, from.RedisErr = conn.Redis(ctx, c.Redis) })
	wg.Go(func() { from.JetStream, from.NATSErr = conn.JetStream(ctx, c.NATS.FromOutside()) })
	wg.Wait()
	if from.NATSErr == nil {
		defer from.JetStream.Conn().Close()
	}
	if from.RedisErr == nil {
		defer func() { _ = rdb.Close() }() // nothing is pending on it
		from.Schedule = schedule.New(rdb, schedule.DefaultMaxPayload)
		id, err := rdb.Get(ctx, keys.Installation).Result()
		if err == nil || errors.Is(err, redis.Nil) { // else other lines say what is wrong
			from.Streams.Installation = id
		}
	}
	return from.Gather(ctx), nil
}

// printStatus prints a report for people.
func printStatus(w io.Writer, r *status.Report) error {
	var b strings.Builder
	for _, p := range r.Problems {
		printWrapped(&b, string(p.Level)+"  ", p.Text)
		printWrapped(&b, "      fix: ", p.Fix)
	}
	if len(r.Problems) == 0 {
		b.WriteString("ok: nothing is wrong\n")
	}
	if r.Redis != nil {
		printRedis(&b, r.Redis)
	}
	if r.NATS != nil {
		printNATS(&b, r.NATS)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printWrapped prints a text behind a label, in lines that fit and begin below each other.
func printWrapped(b *strings.Builder, label, text string) {
	line := strings.Repeat(" ", len(label)) + strings.Join(strings.Fields(text), " ")
	b.WriteString(label + strings.TrimLeft(wrap(line, helpWidth), " "))
}

// newTable returns a table, which is to be flushed.
func newTable(b *strings.Builder, title string) *tabwriter.Writer {
	b.WriteString("\n" + title + "\n")
	return tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
}

func printRedis(b *strings.Builder, r *status.Redis) {
	if len(r.Timerds) > 0 {
		t := newTable(b, "timerds")
		fmt.Fprintln(t, "  RANK\tINSTANCE\tSINCE\tCONFIG\tVERSION")
		for _, d := range r.Timerds {
			fmt.Fprintf(t, "  %d\t%s\t%s\t%s\t%s\n", d.Rank, d.Instance, showMinute(d.Since), orDash(d.Config), d.Version)
		}
		_ = t.Flush() // a strings.Builder takes everything
	}

	fmt.Fprintf(b, "\ntimers  %d pending, %d held, %d owed, %d firing\n", r.Pending, r.Held, r.Owed, r.Firing)
	if r.Oldest != nil {
		printWrapped(b, "        ", fmt.Sprintf("owed for longest: %s, for %s", r.Oldest.Key, showAbout(r.At.Sub(r.Oldest.Due))))
	}
	if len(r.Holds) > 0 {
		t := newTable(b, "held")
		fmt.Fprintln(t, "  NAMESPACE\tSINCE\tUNTIL\tBY\tREASON")
		for _, h := range r.Holds {
			until := "resumed"
			if h.Until != nil {
				until = showMinute(*h.Until)
			}
			if h.Resuming {
				until = "being released"
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", h.Namespace, showMinute(h.Since), until, orDash(h.By), orDash(h.Reason))
		}
		_ = t.Flush()
	}
	if len(r.Namespaces) > 0 {
		t := newTable(b, "by namespace, as counted by the audit "+showAbout(r.At.Sub(r.CountedAt))+" ago")
		fmt.Fprintln(t, "  NAMESPACE\tPENDING\tHELD\tOWED\tFIRING")
		for _, n := range r.Namespaces {
			fmt.Fprintf(t, "  %s\t%d\t%d\t%d\t%d\n", n.Namespace, n.Pending, n.Held, n.Owed, n.Firing)
		}
		_ = t.Flush()
	}

	t := newTable(b, "redis")
	fmt.Fprintln(t, "  NODE\tPENDING\tHELD\tOWED\tFIRING\tLAST AUDIT\tTOOK\tBECAUSE OF")
	for _, n := range r.Nodes {
		audit := "-\t-\t-"
		if a := n.LastAudit; a != nil {
			audit = fmt.Sprintf("%s ago\t%s\t%s", showAbout(r.At.Sub(a.At)), a.Took.Round(time.Millisecond), a.Reason)
		}
		if n.Error != "" {
			fmt.Fprintf(t, "  %s\t?\t?\t?\t?\t%s\n", n.Address, audit)
			continue
		}
		fmt.Fprintf(t, "  %s\t%d\t%d\t%d\t%d\t%s\n", n.Address, n.Pending, n.Held, n.Owed, n.Firing, audit)
	}
	_ = t.Flush()
	printGaps(b, r)
}

// printGaps prints when keyspace events may have been missed.
func printGaps(b *strings.Builder, r *status.Redis) {
	t := newTable(b, "gaps in the keyspace events, with that of the start")
	fmt.Fprintln(t, "  NODE\tGAPS\tLAST\tBECAUSE OF\tSEEN BY")
	none := true
	for _, n := range r.Nodes {
		for _, g := range n.Gaps {
			none = false
			fmt.Fprintf(t, "  %s\t%d\t%s ago\t%s\t%s\n", n.Address, g.Count, showAbout(r.At.Sub(g.At)), g.Last, g.Instance)
		}
	}
	if none {
		fmt.Fprintln(t, "  none is known")
	}
	_ = t.Flush()
}

func printNATS(b *strings.Builder, n *status.NATS) {
	t := newTable(b, "streams at "+n.Server)
	fmt.Fprintln(t, "  STREAM\tMESSAGES\tBYTES\tKEPT FOR\tAT MOST\tREPLICAS")
	for _, s := range n.Streams {
		if s.Error != "" {
			fmt.Fprintf(t, "  %s\t?\t?\t?\t?\t?\n", s.Name)
			continue
		}
		kept, most := "ever", "no limit"
		if s.MaxAge > 0 {
			kept = showAbout(time.Duration(s.MaxAge) * time.Second)
		}
		switch {
		case s.MaxBytes > 0:
			most = showBytes(uint64(s.MaxBytes))
		case s.MaxMessages > 0:
			most = fmt.Sprintf("%d messages", s.MaxMessages)
		}
		fmt.Fprintf(t, "  %s\t%d\t%s\t%s\t%s\t%d of %d\n", s.Name, s.Messages, showBytes(s.Bytes), kept, most, s.Current, s.Replicas)
	}
	_ = t.Flush()
}

// orDash returns a text, or a dash for none.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// showMinute returns a time to the minute, or a dash for none.
func showMinute(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04Z")
}

// showBytes returns a size to a tenth of its unit.
func showBytes(n uint64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	size, units := float64(n), []string{"kB", "MB", "GB", "TB", "PB", "EB"}
	unit := -1
	for size >= 1000 && unit < len(units)-1 {
		size /= 1000
		unit++
	}
	return fmt.Sprintf("%.1f %s", size, units[unit])
}
