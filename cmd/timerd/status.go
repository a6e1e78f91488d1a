package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/ledger"
	"github.com/timerd-io/timerd/internal/rights"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// statusConnect bounds the wait for a server's first answer, so that a frozen one does not delay the other.
	statusConnect = 2 * time.Second
	// statusPresent bounds the wait for silent masters of a cluster.
	statusPresent = 1500 * time.Millisecond
	// statusTimeout bounds everything, connections included. Missing answers are reported as unknown.
	statusTimeout = 4800 * time.Millisecond
)

func newStatus() *cobra.Command {
	var asJSON, acknowledge bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show problems, timerds, timers and streams",
		Long: `Show the state of the installation. Problems come first, each with its fix. Then come the living
timerds; the numbers of pending, owed (due, and not claimed yet) and firing timers (claimed, and not
acknowledged by NATS); and the streams. If Redis or NATS does not answer, the rest is shown.

Lost data (Redis was flushed or is an older copy, or a stream was deleted) is reported until it is
acknowledged with --acknowledge. That changes nothing else.

The exit code is 1 if a line says fail: timers do not fire or were lost, or part of the state cannot
be determined.`,
		Example: `  timerd status
  timerd status --json
  timerd status --acknowledge`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if acknowledge {
				if err := acknowledgeLosses(cmd); err != nil {
					return err
				}
				return fireWaiting(cmd)
			}
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
	cmd.Flags().BoolVar(&acknowledge, "acknowledge", false,
		"stop reporting the data lost so far, and fire what waits in a restored Redis")
	return cmd
}

// acknowledgeLosses stops reporting the data lost so far, and prints the losses.
func acknowledgeLosses(cmd *cobra.Command) error {
	return withJetStream(cmd, config.SectionNATS, func(js jetstream.JetStream, c config.Config) error {
		were, err := streams.AcknowledgeLosses(cmd.Context(), js, c.Streams())
		if err != nil {
			return fmt.Errorf("stream %s: %w", c.Streams().StateStream(), err)
		}
		var texts []string
		for _, loss := range were {
			texts = append(texts, loss.Finding(-1).Text)
		}
		compared, err := ledger.Acknowledge(cmd.Context(), js, c.Streams())
		if err == nil && compared.Differs() {
			text, _ := status.Unexplained(compared, c.Streams().Names)
			texts = append(texts, text)
		}
		for _, text := range texts {
			fmt.Fprintf(cmd.OutOrStdout(), "acknowledged: %s\n", text)
		}
		if len(texts) > 0 {
			journalOn(cmd, js, c.Streams()).Note(cmd.Context(),
				event.Entry{Kind: event.EntryAcknowledge, Count: int64(len(texts))})
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", c.Streams().StateStream(), err)
		}
		if len(texts) == 0 {
			fmt.Fprintln(cmd.OutOrStdout(), "nothing to acknowledge: no data was lost")
		}
		return nil
	})
}

// fireWaiting frees the timers that wait in a restored Redis and cannot be compared, and prints how many.
func fireWaiting(cmd *cobra.Command) error {
	return withSchedule(cmd, func(ctx context.Context, s *schedule.Schedule, _ redis.UniversalClient) error {
		waits, err := s.Waits(ctx)
		if len(waits) == 0 {
			return err
		}
		return errors.Join(err, withJetStream(cmd, config.SectionNATS,
			func(js jetstream.JetStream, c config.Config) error {
				var failed error
				for _, w := range waits {
					failed = errors.Join(failed, fireWait(cmd, s, js, c.Streams().FiredStream(), w))
				}
				return failed
			}))
	})
}

// fireWait is fireWaiting for one server. name is that of the stream of firings.
func fireWait(cmd *cobra.Command, s *schedule.Schedule, js jetstream.JetStream, name string, w schedule.Wait) error {
	ctx, last := cmd.Context(), w.Last.Time()
	since, err := history.Before(ctx, js, name, last)
	if err == nil {
		err = history.CheckReach(ctx, js, name, since, last)
	}
	waiting := strings.TrimSpace(counted(w.Timers, "timer") + " of a restored Redis " + w.Server)
	if _, short := errors.AsType[*history.ShortStream](err); !short {
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "not freed: %s, until a timerd has compared them with %s\n", waiting, name)
		}
		return err
	}
	if err = s.EndWait(ctx, w); err == nil {
		fmt.Fprintf(cmd.OutOrStdout(), "free: %s\n", waiting)
	}
	return err
}

// gatherStatus makes the report. Its error is about the configuration.
func gatherStatus(cmd *cobra.Command) (*status.Report, error) {
	c, _, err := commandConfig(cmd, config.SectionRedis|config.SectionNATS)
	if err != nil {
		return nil, err
	}
	// failures are in the report
	conn := connect.Connector{Logger: slog.New(slog.DiscardHandler), Attempt: statusConnect}
	from := status.Sources{Streams: c.Streams(), Needs: rights.Needs{Events: true}, Clients: c.Clients()}
	var rdb redis.UniversalClient
	var noRedis, noNATS error
	ctx, cancel := context.WithTimeout(cmd.Context(), statusTimeout)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if rdb, noRedis = conn.Redis(ctx, c.Redis); noRedis == nil {
			from.Schedule = schedule.Open(ctx, rdb, schedule.DefaultMaxPayload)
			from.Masters, noRedis = from.Schedule.PassOver(ctx, statusPresent)
		}
	})
	wg.Go(func() { from.JetStream, noNATS = openStreams(ctx, conn, c.NATS.FromOutside()) })
	wg.Wait()
	if noNATS != nil {
		from.NoNATS = diag.Of(diag.CheckNATS, noNATS, connect.NATSFix(c.NATS, noNATS))
	} else {
		defer from.JetStream.Conn().Close()
	}
	if rdb != nil {
		defer func() { _ = rdb.Close() }() // nothing is pending on it
	}
	for _, master := range from.Masters {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %v\n", master)
	}
	if noRedis != nil {
		from.Schedule = nil
		from.NoRedis = diag.Of(diag.CheckRedis, noRedis, connect.RedisFix(noRedis))
	} else {
		within, cancel := context.WithTimeout(ctx, membersWithin)
		id, err := rdb.Get(within, keys.Installation).Result()
		cancel()
		if err == nil || errors.Is(err, redis.Nil) { // otherwise other lines name the fault
			from.Streams.Installation = id
		}
		if text := virtualTime(ctx, from.Schedule); text != "" {
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %s\n", text)
		}
	}
	return from.Gather(ctx), nil
}

// openStreams connects to NATS, with or without JetStream: the report covers JetStream's answers.
func openStreams(ctx context.Context, conn connect.Connector, conf config.NATS) (jetstream.JetStream, error) {
	nc, err := conn.NATS(ctx, conf)
	if err != nil {
		return nil, err
	}
	js, err := connect.NewJetStream(nc, conf)
	if err == nil {
		err = streams.CheckVersion(nc.ConnectedServerVersion())
	}
	if err != nil {
		nc.Close()
		return nil, err
	}
	return js, nil
}

// statusPrinter prints a report for people. On a terminal its lines fit.
type statusPrinter struct {
	strings.Builder
	screen screen
}

// printStatus prints a report for people.
func printStatus(w io.Writer, r *status.Report) error {
	p := statusPrinter{screen: screenOf(w)}
	for _, problem := range r.Problems {
		p.problem(problem)
	}
	if len(r.Problems) == 0 {
		p.WriteString(p.screen.paint("ok", toneGood) + ": nothing is wrong\n")
	}
	if r.Redis != nil {
		p.timerds(r.Redis)
		p.timers(r.Redis)
		p.nodes(r.Redis)
		p.gaps(r.Redis)
	}
	if r.NATS != nil {
		p.streams(r.NATS)
		p.letters(r.NATS)
		p.consumers("webhooks", r.NATS.Webhooks, nil)
		p.consumers("consumers of other programs", r.NATS.Others(), r.NATS.Unnamed)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

func (p *statusPrinter) problem(problem diag.Finding) {
	label := fmt.Sprintf("%-6s", problem.Level)
	tone := toneOdd
	if problem.Level == diag.Fail {
		tone = toneBad
	}
	p.WriteString(p.screen.paint(label, tone))
	p.text(len(label), problem.Text)
	p.WriteString("      fix: ")
	p.text(len("      fix: "), problem.Fix)
}

// text prints a text from a column on, in aligned lines that fit.
func (p *statusPrinter) text(column int, text string) {
	width := helpWidth
	if p.screen.width > 0 {
		width = min(width, max(p.screen.width, 2*column))
	}
	line := strings.Repeat(" ", column) + strings.Join(strings.Fields(text), " ")
	p.WriteString(strings.TrimLeft(wrap(line, width), " "))
}

// table begins a table below a title. It is indented by an empty column.
func (p *statusPrinter) table(title string, columns ...column) *table {
	p.WriteByte('\n')
	p.text(0, title)
	return newTable(p, p.screen, true, append([]column{{}}, columns...)...)
}

func (p *statusPrinter) timerds(r *status.Redis) {
	if len(r.Timerds) == 0 {
		return
	}
	t := p.table("timerds", column{title: "RANK"}, column{title: "INSTANCE", middle: true, least: 20},
		column{title: "SINCE", spare: 2},
		column{title: "CONFIG", spare: 1}, column{title: "VERSION", least: 8})
	for _, d := range r.Timerds {
		t.row("", d.Rank, d.Instance, showMinute(d.Since), cmp.Or(d.Config, "-"), d.Version)
	}
	_ = t.flush()
}

func (p *statusPrinter) timers(r *status.Redis) {
	const label = "        "
	fmt.Fprintf(p, "\ntimers  %d pending, %s held, %d owed, %d firing\n", r.Pending, showKnown(r.Held), r.Owed,
		r.Firing)
	if r.Held == nil {
		p.WriteString(label)
		p.text(len(label), "some of those owed may be held: no timerd has looked at all of them yet")
	}
	if r.Oldest != nil {
		p.WriteString(label)
		p.text(len(label), fmt.Sprintf("owed for longest: %s, for %s", r.Oldest.Key, showAbout(r.At.Sub(r.Oldest.Due))))
	}
	p.holds(r)
	if len(r.Namespaces) == 0 {
		return
	}
	t := p.table("by namespace, as counted by the audit "+showAbout(r.RealAt().Sub(r.CountedAt))+" ago",
		column{title: "NAMESPACE", middle: true, least: 20}, column{title: "PENDING"}, column{title: "HELD"},
		column{title: "OWED"}, column{title: "FIRING"})
	for _, n := range r.Namespaces {
		t.row("", n.Namespace, n.Pending, n.Held, n.Owed, n.Firing)
	}
	_ = t.flush()
}

// holds prints the namespaces on hold.
func (p *statusPrinter) holds(r *status.Redis) {
	if len(r.Holds) == 0 {
		return
	}
	t := p.table("held", column{title: "NAMESPACE", middle: true, least: 20}, column{title: "SINCE", spare: 2},
		column{title: "UNTIL"},
		column{title: "BY", middle: true, least: 8, spare: 1}, column{title: "REASON", least: 8})
	for _, h := range r.Holds {
		until := "resumed"
		if h.Until != nil {
			until = showMinute(*h.Until)
		}
		if h.Resuming {
			until = "being released"
		}
		t.row("", h.Namespace, showMinute(h.Since), until, cmp.Or(h.By, "-"), cmp.Or(h.Reason, "-"))
	}
	_ = t.flush()
}

func (p *statusPrinter) nodes(r *status.Redis) {
	t := p.table("redis", column{title: "NODE", middle: true, least: 20}, column{title: "PENDING"},
		column{title: "HELD"}, column{title: "OWED"}, column{title: "FIRING"},
		column{title: "LAST AUDIT"}, column{title: "TOOK", spare: 1}, column{title: "BECAUSE OF", least: 8, spare: 2})
	for _, n := range r.Nodes {
		pending, held, owed, firing := fmt.Sprint(n.Pending), showKnown(n.Held), fmt.Sprint(n.Owed),
			fmt.Sprint(n.Firing)
		if n.Error != "" {
			pending, held, owed, firing = "?", "?", "?", "?"
		}
		ago, took, reason := "-", "-", "-"
		if a := n.LastAudit; a != nil {
			ago, took, reason = showAbout(r.RealAt().Sub(a.At))+" ago", showAbout(a.Took), a.Reason
		}
		t.row("", n.Address, pending, held, owed, firing, ago, took, reason)
	}
	_ = t.flush()
}

// gaps prints the gaps in the keyspace events.
func (p *statusPrinter) gaps(r *status.Redis) {
	t := p.table("gaps in the keyspace events, with that of the start", column{title: "NODE", middle: true, least: 20},
		column{title: "GAPS"},
		column{title: "LAST"}, column{title: "BECAUSE OF", least: 8, spare: 2},
		column{title: "SEEN BY", middle: true, least: 20, spare: 1})
	none := true
	for _, n := range r.Nodes {
		for _, g := range n.Gaps {
			none = false
			t.row("", n.Address, g.Count, showAbout(r.RealAt().Sub(g.At))+" ago", g.Last, g.Instance)
		}
	}
	_ = t.flush()
	if none {
		p.WriteString("  none is known\n")
	}
}

func (p *statusPrinter) streams(n *status.NATS) {
	t := p.table("streams at "+n.Server, column{title: "STREAM", middle: true, least: 12}, column{title: "MESSAGES"},
		column{title: "BYTES"},
		column{title: "KEPT FOR", spare: 1}, column{title: "AT MOST", spare: 2}, column{title: "REPLICAS"})
	for _, s := range n.Streams {
		if s.Error != "" {
			t.row("", s.Name, "?", "?", "?", "?", "?")
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
		t.row("", s.Name, s.Messages, showBytes(s.Bytes), kept, most, fmt.Sprintf("%d of %d", s.Current, s.Replicas))
	}
	_ = t.flush()
}

// letters prints the dead letters by namespace. The last column, the error, takes the rest of the width.
func (p *statusPrinter) letters(n *status.NATS) {
	const most, otherColumns, leastError = 10, 36, 20
	if len(n.Letters) == 0 {
		return
	}
	shown := n.Letters[:min(len(n.Letters), most)]
	longest := 0
	for _, l := range shown {
		longest = max(longest, utf8.RuneCountInString(l.Namespace))
	}
	title := "dead letters by namespace, with the last one's reason"
	if all := len(n.Letters) + n.LettersLeftOut; all > len(shown) {
		title = fmt.Sprintf("%s: %d of %d namespaces, most letters first", title, len(shown), all)
	}
	t := p.table(title,
		column{title: "NAMESPACE", middle: true, least: 20}, column{title: "LETTERS", right: true},
		column{title: "LAST"}, column{title: "ERROR", least: 20, spare: 1})
	for _, l := range shown {
		why := showText(cmp.Or(l.Error, l.Reason, "-"), max(helpWidth-otherColumns-longest, leastError))
		t.row("", l.Namespace, l.Letters, showMinute(l.Last), why)
	}
	_ = t.flush()
}

// consumers prints the waiting events and the failures of consumers of fired events, of the ones furthest behind if
// there are many. unnamed has the failures of consumers that do not name themselves.
func (p *statusPrinter) consumers(title string, all []status.Consumer, unnamed []status.Failures) {
	const most = 10
	if len(all) == 0 && len(unnamed) == 0 {
		return
	}
	if len(all) > most {
		title = fmt.Sprintf("%s: %d of %d consumers, most waiting events first", title, most, len(all))
		all = slices.Clone(all)
		slices.SortStableFunc(all, func(a, b status.Consumer) int { return cmp.Compare(b.Waiting, a.Waiting) })
		all = all[:most]
	}
	t := p.table(title, column{title: "CONSUMER", middle: true, least: 20}, column{title: "WAITING"},
		column{title: "IN WORK"},
		column{title: "OLDEST", spare: 1}, column{title: "LAST EVENT", spare: 3},
		column{title: "REDELIVERED", spare: 2},
		column{title: "FAILED IN 10m"})
	for _, c := range all {
		oldest, last := "-", "-"
		if !c.Oldest.IsZero() {
			oldest = showAbout(c.At.Sub(c.Oldest))
		}
		if !c.Last.IsZero() {
			last = showAbout(c.At.Sub(c.Last)) + " ago"
		}
		t.row("", c.Name, c.Waiting, c.Working, oldest, last, c.Redelivered, showKnown(c.Failed))
	}
	for _, f := range unnamed[:min(len(unnamed), most)] {
		t.row("", "others, of "+f.Namespace, "-", "-", "-", "-", "-", f.Failed)
	}
	_ = t.flush()
}

// showMinute formats a time to the minute; a dash for none.
func showMinute(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04Z")
}

// showBytes formats a size to a tenth of its unit.
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
