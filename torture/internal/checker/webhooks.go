package checker

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/torture/internal/history"
)

// Webhooks counts the results of the events for timerd deliver.
type Webhooks struct {
	Origins, Delivered, Dead int // timers that fired, and the ends of their deliveries
	Perhaps                  int // perhaps lost by a failover
	Answered, Refused, Gone  int // calls: with 2xx, with another status, and not at all
	Records                  map[history.Result]int
	Unlogged, Repeated       int // excused calls: without a record, and after a success
	// Calm and Beside are the delays, in ms, between an event and the call of a reliable host. Calm has those while all
	// hosts answered, Beside those while one did not. They are sorted.
	Calm, Beside []int64
}

// hooks judges webhooks. It sorts the history by origin, the id of a timer's first event.
type hooks struct {
	*judge
	hearing *hearing
	events  map[string]history.Message // by their ids
	origins map[string]*origin
}

// origin has the history of the deliveries of one timer.
type origin struct {
	id      string
	events  []history.Message // fired, in the order of the stream
	letters []history.Message // dead letters
	calls   []history.Call    // in order of arrival
	records []history.Delivery
}

// last returns the last event.
func (o *origin) last() history.Message { return o.events[len(o.events)-1] }

func succeeded(c history.Call) bool { return c.Status == http.StatusOK }

// isHook reports whether timerd deliver delivers the events of a key.
func (j *judge) isHook(key string) bool {
	return j.h.Run.Deliverers > 0 && history.App(key) == history.HookApp
}

// firsts returns the messages of a key that its operations requested. For webhooks, timerd deliver has requested all
// messages after a first event, so they are left out.
func (j *judge) firsts(key string) []history.Message {
	if !j.isHook(key) {
		return j.messages[key]
	}
	return slices.DeleteFunc(slices.Clone(j.messages[key]), isFollowUp)
}

func isFollowUp(m history.Message) bool { return m.Stream == history.DeadStream || m.Origin != "" }

// webhooks judges all deliveries.
func (j *judge) webhooks(e *hearing) {
	w := &hooks{judge: j, hearing: e, events: map[string]history.Message{}, origins: map[string]*origin{}}
	j.report.Webhooks.Records = map[history.Result]int{}
	w.sort()
	w.names()
	for _, id := range slices.Sorted(maps.Keys(w.origins)) {
		w.origin(w.origins[id])
	}
	w.circuits()
	slices.Sort(j.report.Webhooks.Calm)
	slices.Sort(j.report.Webhooks.Beside)
}

// of returns the origin with an id.
func (w *hooks) of(id string) *origin {
	o := w.origins[id]
	if o == nil {
		o = &origin{id: id}
		w.origins[id] = o
	}
	return o
}

// sort sorts the history by its origins.
func (w *hooks) sort() {
	for _, m := range w.h.Messages {
		if m.Fault != "" || !w.isHook(m.Key) {
			continue
		}
		o := w.of(cmp.Or(m.Origin, m.EventID))
		if m.Stream == history.DeadStream {
			o.letters = append(o.letters, m)
			continue
		}
		o.events = append(o.events, m)
		w.events[m.EventID] = m
		if isFollowUp(m) {
			w.message(m.Key, m, m.Due)
		}
	}
	for _, c := range w.h.Calls {
		switch {
		case c.Status == 0:
			w.report.Webhooks.Gone++
		case succeeded(c):
			w.report.Webhooks.Answered++
		default:
			w.report.Webhooks.Refused++
		}
		if c.Fault != "" {
			w.fault(BadWebhook, c.Key, "a call of %s at %d, webhook-id %q: %s", c.Host, c.At, c.WebhookID, c.Fault)
			continue
		}
		o := w.of(c.Origin)
		o.calls = append(o.calls, c)
	}
	for _, r := range w.h.Deliveries {
		w.report.Webhooks.Records[r.Result]++
		if r.Fault != "" {
			w.fault(WrongRecord, r.Key, "a record stored at %d: %s", r.Stored, r.Fault)
			continue
		}
		o := w.of(r.Origin)
		o.records = append(o.records, r)
	}
	for _, o := range w.origins {
		slices.SortStableFunc(o.calls, func(a, b history.Call) int { return cmp.Compare(a.At, b.At) })
	}
}

// names checks that each origin has one webhook-id, different from the webhook-ids of all other origins.
func (w *hooks) names() {
	ids, origins := map[string]string{}, map[string]string{}
	for _, c := range w.h.Calls {
		if c.Fault != "" {
			continue
		}
		if id, ok := ids[c.Origin]; ok && id != c.WebhookID {
			w.fault(BadWebhook, c.Key, "a call at %d of %s has the webhook-id %q, another one %q", c.At, c.Origin,
				c.WebhookID, id)
		} else if origin, ok := origins[c.WebhookID]; ok && origin != c.Origin {
			w.fault(BadWebhook, c.Key, "a call at %d of %s has the webhook-id %q, as have those of %s", c.At, c.Origin,
				c.WebhookID, origin)
		}
		ids[c.Origin], origins[c.WebhookID] = c.WebhookID, c.Origin
	}
}

// origin judges the deliveries of one timer.
func (w *hooks) origin(o *origin) {
	if len(o.events) == 0 || o.events[0].EventID != o.id {
		w.stranger(o)
		return
	}
	w.report.Webhooks.Origins++
	first := o.events[0]
	for _, c := range o.calls {
		w.call(first, c)
	}
	w.chain(o)
	w.end(o)
	w.logged(o)
	w.repeats(o)
	w.punctual(o)
}

// stranger reports a call or a record without an event in the stream.
func (w *hooks) stranger(o *origin) {
	switch {
	case len(o.events) > 0:
		w.fault(Unexpected, o.events[0].Key, "%s: its timer's first event %s is missing from the stream",
			o.events[0].EventID, o.id)
	case len(o.letters) > 0:
		w.fault(Unexpected, o.letters[0].Key,
			"the dead letter %s: its timer's first event %s is missing from the stream", o.letters[0].EventID, o.id)
	case len(o.calls) > 0:
		w.fault(BadWebhook, o.calls[0].Key, "a call at %d with %s, which is no event", o.calls[0].At,
			o.calls[0].EventID)
	default:
		w.fault(WrongRecord, o.records[0].Key, "a record stored at %d of %s, which is no event", o.records[0].Stored,
			o.records[0].ID)
	}
}

// call checks that a call has its event, and the right receiver.
func (w *hooks) call(first history.Message, c history.Call) {
	m, ok := w.events[c.EventID]
	switch {
	case !ok, m.Key != c.Key, m.Attempt != c.Attempt, m.Payload != c.Payload:
		w.fault(BadWebhook, c.Key, "a call at %d with %s as attempt %d, %q, which is no event", c.At, c.EventID,
			c.Attempt, c.Payload)
	case "http://"+c.Host+c.Path != w.url(first):
		w.fault(BadWebhook, c.Key, "a call at %d of %s%s, want %s", c.At, c.Host, c.Path, w.url(first))
	}
}

// url returns the URL for a timer's events; "" if there is none.
func (w *hooks) url(first history.Message) string {
	if history.Matches(history.HookApp+":"+history.ModuleFixed, first.Key) {
		return "http://" + w.h.Run.Fixed + history.PathUsual
	}
	var payload struct {
		URL string `json:"notify_url"`
	}
	_ = json.Unmarshal([]byte(first.Payload), &payload) // a payload that is not JSON has no URL
	return payload.URL
}

// chain checks that the event before requested each event after the first. A failed delivery uses up an attempt, a
// postponed one does not. timerd carries out one request for each event.
func (w *hooks) chain(o *origin) {
	for i, m := range o.events[1:] {
		before := o.events[i]
		asked := slices.ContainsFunc(o.records, func(r history.Delivery) bool {
			return r.ID == before.EventID && r.Stored <= m.Stored &&
				(r.Result == history.Retried && m.Attempt == before.Attempt+1 || r.Result == history.Postponed &&
					m.Attempt == before.Attempt)
		})
		if !asked && !w.hearing.failover(before.Stored-hearTime, m.Stored+hearTime) {
			w.fault(Charged, m.Key, "%s is attempt %d after attempt %d, which no delivery has asked for", m.EventID,
				m.Attempt, before.Attempt)
		}
		if m.Payload != o.events[0].Payload || m.Status != o.events[0].Status {
			w.fault(WrongPayload, m.Key, "%s: %q %s, want %q %s", m.EventID, m.Payload, m.Status, o.events[0].Payload,
				o.events[0].Status)
		}
	}
}

// end judges the end of a timer's deliveries: a success, or a dead letter with a reason.
func (w *hooks) end(o *origin) {
	for _, m := range o.letters {
		w.deadLetter(o, m)
	}
	switch last := o.last(); {
	case slices.ContainsFunc(o.calls, succeeded):
		w.report.Webhooks.Delivered++
	case len(o.letters) > 0:
		w.report.Webhooks.Dead++
	case w.lost(o):
		w.report.Webhooks.Perhaps++
	default:
		w.fault(Undelivered, last.Key, "%s was stored at %d, and nobody got it", last.EventID, last.Stored)
	}
}

// lost reports whether a failover may have lost the request of a timer's last delivery.
func (w *hooks) lost(o *origin) bool {
	return slices.ContainsFunc(o.records, func(r history.Delivery) bool {
		return r.ID == o.last().EventID && w.hearing.failover(r.Stored-hearTime, r.Stored+aftermath)
	})
}

// deadLetter judges whether a dead letter was required.
func (w *hooks) deadLetter(o *origin, m history.Message) {
	fits := slices.ContainsFunc(o.records, func(r history.Delivery) bool {
		if r.ID != m.EventID || r.Result != history.Died || r.Stored > m.Stored {
			return false
		}
		hopeless := r.Status == http.StatusGone || r.Took == 0 && m.Status != ""
		return hopeless && m.Reason == event.ReasonGivenUp || m.Reason == event.ReasonExhausted && m.Attempt >= m.Max
	})
	if !fits {
		w.fault(WrongEnd, m.Key, "%s is a dead letter, %q, as attempt %d of %d, and no delivery ended so", m.EventID,
			m.Reason, m.Attempt, m.Max)
	}
}
