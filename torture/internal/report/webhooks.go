package report

import (
	"fmt"
	"io"

	"github.com/timerd-io/timerd/torture/internal/checker"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// webhooks shows the results of timerd deliver's events.
func webhooks(t io.Writer, r *checker.Report) {
	w := r.Webhooks
	fmt.Fprintf(t, "webhooks\t%d\n", w.Origins)
	fmt.Fprintf(t, "delivered\t%d\n", w.Delivered)
	fmt.Fprintf(t, "dead letters\t%d\n", w.Dead)
	fmt.Fprintf(t, "perhaps lost in a failover\t%d\n", w.Perhaps)
	fmt.Fprintf(t, "calls that succeeded\t%d\n", w.Answered)
	fmt.Fprintf(t, "that were refused\t%d\n", w.Refused)
	fmt.Fprintf(t, "without an answer\t%d\n", w.Gone)
	fmt.Fprintf(t, "again after a success, excused\t%d\n", w.Repeated)
	fmt.Fprintf(t, "not logged, excused\t%d\n", w.Unlogged)
	for _, result := range []history.Result{history.Delivered, history.Retried, history.Postponed, history.Died} {
		fmt.Fprintf(t, "logged as %s\t%d\n", result, w.Records[result])
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "hosts that answer, called\t\tevents\tlate p50\tp99\tmax, ms")
	for _, row := range []struct {
		name string
		late []int64
	}{{"while all hosts answer", w.Calm}, {"while one host is away", w.Beside}} {
		fmt.Fprintf(t, "%s\t\t%d\t%s\t%s\t%s\n", row.name, len(row.late), at(row.late, 0.5), at(row.late, 0.99),
			at(row.late, 1))
	}
	fmt.Fprintln(t)
}
