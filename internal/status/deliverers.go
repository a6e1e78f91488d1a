package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/streams"
)

// checkDeliverers reports processes of timerd deliver with another file than their group.
func checkDeliverers(all []streams.Deliverer, p *diag.Findings) {
	outdated := map[string][]streams.Deliverer{}
	for _, d := range all {
		if d.Outdated != nil {
			outdated[d.Outdated.Group] = append(outdated[d.Outdated.Group], d)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(outdated)) {
		checkOutdated(outdated[group], p)
	}
}

// checkOutdated reports processes with another file than their group.
func checkOutdated(of []streams.Deliverer, p *diag.Findings) {
	o := of[0].Outdated
	var who []string
	for _, d := range of {
		who = append(who, d.Instance)
		if d.Outdated.Changed.After(o.Changed) {
			o = d.Outdated
		}
	}
	why, count := "changed at "+o.Changed.UTC().Format(time.RFC3339), "touch it"
	if o.Version > 0 {
		why = fmt.Sprintf("version %d, %s", o.Version, why)
	}
	if !o.Touch {
		count = fmt.Sprintf("give it a version over %d", o.Version)
	}
	p.Warn("bring the process's file up to date, and send the process SIGHUP; or, if that file is the right one, "+
		count+" and send SIGHUP",
		"group %s of timerd deliver: no events are taken by %s, as the group uses another file, with SHA-256 %s (%s, "+
			"set by %s)",
		clean(o.Group), names(who), clean(o.File), why, clean(o.By))
}

// checkCircuits reports failing hosts that are not called for now.
func checkCircuits(f *facts, p *diag.Findings) {
	var failing []streams.Circuit
	for _, d := range f.deliverers {
		failing = append(failing, d.Circuits...)
	}
	if len(failing) == 0 {
		return
	}
	var hosts, namespaces []string
	last := ""
	oldest, postponed := failing[0].Since, int64(0)
	for _, c := range failing {
		hosts = append(hosts, c.Host)
		namespaces = append(namespaces, c.Namespaces...)
		postponed += c.Postponed
		last = cmp.Or(c.Error, last)
		if c.Since.Before(oldest) {
			oldest = c.Since
		}
	}
	text := "deliveries to them wait as timers"
	if postponed > 0 {
		text = fmt.Sprintf("deliveries of %s were put off %s, and wait as timers",
			cmp.Or(distinct(namespaces), "events"), count(postponed, "time", "times"))
	}
	if last != "" {
		text += "; the last call: " + clean(last)
	}
	p.Warn("calls begin again by themselves within 10 minutes of their repair, or once timerd deliver is restarted, "+
		"and no delivery is lost until expire; their answers: timerd deliveries --failed --since 10m",
		"%s: not called by timerd deliver, because calls fail, since %s; %s", distinct(hosts),
		oldest.UTC().Format(time.RFC3339), text)
}

// distinct lists the different texts, in order; of many, only some.
func distinct(all []string) string {
	slices.Sort(all)
	return names(slices.Compact(all))
}
