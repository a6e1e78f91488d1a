package console

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/keys"
)

const (
	// deliveryRows is the number of deliveries on a page.
	deliveryRows = 50
	// hostRecords limits the newest records of the log from which the hosts' numbers are made, and hostsWithin their
	// age. hostRows limits the hosts.
	hostRecords = 2000
	hostsWithin = 10 * time.Minute
	hostRows    = 50
)

// Webhooks is a page of deliveries, the newest first, with the hosts that were called lately.
type Webhooks struct {
	At    time.Time  `json:"at"`
	Hosts []HostView `json:"hosts"` // uncalled ones first, then the most failing
	// HostsLeftOut is the number of further hosts.
	HostsLeftOut int            `json:"hostsleftout"`
	From         *time.Time     `json:"from"` // the hosts' numbers are of the records since then; null without any
	Query        string         `json:"query"`
	Text         string         `json:"text"`
	Failed       bool           `json:"failed"` // only calls that failed are listed
	Rows         []DeliveryView `json:"deliveries"`
	Next         string         `json:"next"` // the place= of the next page; empty at the end
	Full         bool           `json:"full"` // the page is full; if not, and Next is set, one search took too long
	Total        uint64         `json:"total"`
	Since        *time.Time     `json:"since"` // deliveries stored since then were searched; null: all
	First        bool           `json:"-"`
	NoLog        bool           `json:"-"`
	Away         string         `json:"away,omitempty"` // why the hosts' numbers are unknown
}

// HostView is a host's numbers of the last minutes.
type HostView struct {
	Host      string       `json:"host"`
	Calls     int          `json:"calls"`
	PerSecond float64      `json:"persecond"` // calls
	P50       *int64       `json:"p50"`       // of the calls' duration in ms; null without calls
	P99       *int64       `json:"p99"`
	Failed    int          `json:"failed"`    // calls
	Postponed int          `json:"postponed"` // deliveries put off or given up without a call
	LastError string       `json:"lasterror,omitempty"`
	Circuit   *CircuitView `json:"circuit"` // null while it is called

	took []int64
}

// CircuitView tells why a host is not called.
type CircuitView struct {
	Since     time.Time  `json:"since"`
	Next      *time.Time `json:"next"`      // of the next probe; null if unknown
	Processes int        `json:"processes"` // of timerd deliver that do not call it
	Postponed int64      `json:"postponed"` // times that they have put off deliveries since then
}

// FailingShare returns the share of calls that failed.
func (h HostView) FailingShare() float64 { return float64(h.Failed) / float64(max(h.Calls, 1)) }

// hostCounts are the numbers of the hosts.
type hostCounts struct {
	hosts map[string]*HostView
	from  time.Time // of the first record counted
	err   error
}

// countHosts reads the newest records of the log.
func (s *shared) countHosts(ctx context.Context) *hostCounts {
	c := &hostCounts{hosts: map[string]*HostView{}}
	now := s.realNow(ctx)
	c.err = s.sources.History.Newest(ctx, keys.Delivery, hostRecords, func(r history.Record) bool {
		if now.Sub(r.Stored) < hostsWithin {
			c.add(r)
		}
		return true
	})
	seconds := max(now.Sub(c.from).Seconds(), 1)
	for _, h := range c.hosts {
		h.PerSecond = float64(h.Calls) / seconds
		if slices.Sort(h.took); len(h.took) > 0 {
			h.P50, h.P99 = &h.took[(len(h.took)-1)/2], &h.took[(len(h.took)-1)*99/100]
		}
	}
	return c
}

func (c *hostCounts) add(r history.Record) {
	if c.from.IsZero() {
		c.from = r.Stored
	}
	if r.Fault != "" || r.Delivery.Host == "" {
		return
	}
	h := c.host(clip(r.Delivery.Host, hostBytes))
	if r.Delivery.Duration <= 0 {
		h.Postponed++
		return
	}
	h.Calls++
	h.took = append(h.took, r.Delivery.Duration)
	if r.Delivery.Result != event.ResultDelivered {
		h.Failed++
		h.LastError = event.ClipText(r.Delivery.Error)
	}
}

func (c *hostCounts) host(name string) *HostView {
	if c.hosts[name] == nil {
		c.hosts[name] = &HostView{Host: name}
	}
	return c.hosts[name]
}

// views returns the hosts with their circuits, and the number of hosts left out.
func (c *hostCounts) views(circuits []status.Circuit) (all []HostView, leftOut int) {
	open := map[string]*CircuitView{}
	all = []HostView{}
	for _, o := range circuits {
		v := open[o.Host]
		if v == nil {
			v = &CircuitView{Since: o.Since}
			if open[o.Host] = v; c.hosts[o.Host] == nil {
				all = append(all, HostView{Host: o.Host, Circuit: v, LastError: o.Error})
			}
		}
		if v.Processes, v.Postponed = v.Processes+1, v.Postponed+o.Postponed; o.Since.Before(v.Since) {
			v.Since = o.Since
		}
		if !o.Next.IsZero() && (v.Next == nil || o.Next.Before(*v.Next)) {
			v.Next = timeOrNil(o.Next)
		}
	}
	for name, h := range c.hosts {
		one := *h
		one.Circuit = open[name]
		all = append(all, one)
	}
	slices.SortFunc(all, compareHosts)
	leftOut = max(len(all)-hostRows, 0)
	return all[:len(all)-leftOut], leftOut
}

// compareHosts puts hosts that are not called first, then the most failing ones.
func compareHosts(a, b HostView) int {
	switch {
	case (a.Circuit == nil) != (b.Circuit == nil):
		if a.Circuit != nil {
			return -1
		}
		return 1
	case a.Failed != b.Failed:
		return b.Failed - a.Failed
	case a.Calls != b.Calls:
		return b.Calls - a.Calls
	}
	return strings.Compare(a.Host, b.Host)
}

// webhookPages read the log of webhooks.
type webhookPages struct {
	*shared
	hosts *cache[*hostCounts]
}

func newWebhookPages(s *shared) *webhookPages {
	return &webhookPages{s, newCache(forecastAge, s.countHosts)}
}

// webhooks reads a page of deliveries.
func (pg *webhookPages) webhooks(r *http.Request) (*page, error) {
	values := r.URL.Query()
	v := &Webhooks{At: pg.now(r.Context()), Hosts: []HostView{}, Rows: []DeliveryView{}, Query: typed(values, "q"),
		Text: typed(values, "text"), Failed: values.Get("failed") == "1", First: values.Get("place") == ""}
	n, err := parseNamespaceQuery(v.Query)
	if err != nil {
		return nil, err
	}
	p := &page{Template: "webhooks", Title: "Webhooks", Nav: "/webhooks", View: v}
	q := history.Query{Kind: keys.Delivery, Namespace: n, Why: v.Text, Failed: v.Failed}
	found, err := pg.sources.History.Search(r.Context(), q, values.Get("place"), deliveryRows)
	switch {
	case errors.Is(err, history.ErrPlace):
		return nil, badRequest("place= is no place in the list.", "Begin at the first page.")
	case errors.Is(err, history.ErrNoStream):
		v.NoLog = true
		return p, nil
	case err != nil:
		p.Trouble = asFault(err)
		return p, nil
	}
	for _, record := range found.Records {
		v.Rows = append(v.Rows, newDeliveryView(record))
	}
	v.Next, v.Full, v.Since = found.Place, len(found.Records) == deliveryRows, timeOrNil(found.Since)
	for _, stream := range found.Streams {
		v.Total = stream.Messages
	}
	pg.addHosts(r.Context(), v)
	return p, nil
}

func (pg *webhookPages) addHosts(ctx context.Context, v *Webhooks) {
	counts := pg.hosts.get(ctx)
	if counts == nil || counts.err != nil {
		v.Away = "The hosts cannot be shown now."
		return
	}
	var circuits []status.Circuit
	if state := pg.state.get(ctx); state.NATS() {
		circuits = state.Report.NATS.Circuits
	}
	v.Hosts, v.HostsLeftOut = counts.views(circuits)
	v.From = timeOrNil(counts.from)
}

// Filter reports whether a filter is set.
func (v *Webhooks) Filter() bool { return v.Query != "" || v.Text != "" || v.Failed }

// failedText returns the value of failed= in an address.
func (v *Webhooks) failedText() string {
	if v.Failed {
		return "1"
	}
	return ""
}

// Beginning returns the address of the first page.
func (v *Webhooks) Beginning() string {
	return address("/webhooks", "q", v.Query, "text", v.Text, "failed", v.failedText())
}

// More returns the address of the next page.
func (v *Webhooks) More() string {
	return address("/webhooks", "q", v.Query, "text", v.Text, "failed", v.failedText(), "place", v.Next)
}

// Rowed returns the deliveries as rows.
func (v *Webhooks) Rowed() (rows []DeliveryRow) {
	for _, d := range v.Rows {
		rows = append(rows, DeliveryRow{d, 1, d.At})
	}
	return rows
}

// FullDelivery is one delivery in full.
type FullDelivery struct {
	Now time.Time `json:"now"`
	DeliveryView
	Subject string `json:"natssubject"`
}

// delivery reads one delivery.
func (pg *webhookPages) delivery(r *http.Request) (*page, error) {
	seq, err := sequence(r, "a delivery", "The list of deliveries has their numbers.")
	if err != nil {
		return nil, err
	}
	number := strconv.FormatUint(seq, 10)
	v := &FullDelivery{Now: pg.now(r.Context())}
	p := &page{Template: "delivery", Title: "Delivery " + number, Nav: "/webhooks", View: v}
	record, there, err := pg.sources.History.Get(r.Context(), keys.Delivery, seq)
	if err != nil {
		p.Trouble = asFault(err)
		return p, nil
	}
	if !there {
		return nil, &fault{Status: http.StatusNotFound, Title: "No such delivery",
			Detail: "There is no delivery " + number + ": it is too old, or never was.",
			Fix:    "The list of deliveries has the present ones."}
	}
	v.DeliveryView, v.Subject = newDeliveryView(record), keys.EncodeText(record.Subject)
	return p, nil
}
