package console

import (
	"net/http"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/internal/query"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// lifeEvents limits the events and deliveries on a timer's page.
const lifeEvents = 40

// timer reads everything about one key.
func (pg *timerPage) timer(r *http.Request) (*page, error) {
	key, err := keys.Parse(r.PathValue("key"))
	if err != nil {
		return nil, &fault{Status: http.StatusNotFound, Title: "Not a timer's key", Detail: err.Error(),
			Fix: "A key is app:module:type:id, percent-encoded in the address. The search finds timers by a part of " +
				"their id."}
	}
	name := key.String()
	v := &TimerPage{
		At: pg.now(r.Context()), Key: keys.EncodeText(name), Ref: encodeRef(name), Name: newKeyText(key),
		Timers: []InspectedView{}, Life: []LifeView{}, Policy: pg.policyOf(key), Late: pg.lateOf(key),
		Guard: pg.sources.Guards.For(key).String(),
	}
	p := &page{Template: "timer", Title: clip(plain(name), 80), Nav: "/timers", View: v}
	from := r.URL.Query().Get("from")
	v.Events, v.newestPage = pg.readEvents(r, history.Query{Key: key}, from, lifeEvents), from == ""
	found, err := query.Inspect(r.Context(), pg.sources.Index, key, payloadBytes)
	if err != nil {
		p.Trouble = asFault(err)
	} else {
		pg.addInspection(v, found)
		if found.Repeats {
			pg.addRepetition(r, v, key)
		}
	}
	v.Life = pg.lifeOf(v, err == nil)
	return p, nil
}

func (pg *timerPage) addInspection(v *TimerPage, found query.Inspection) {
	v.At, v.More, v.Unsure, v.FiredAt, v.Contested = found.Now.UTC(), found.More, found.Unsure, timeOrNil(found.Fired),
		timeOrNil(found.Contested)
	v.Trigger = TriggerView{There: found.Trigger.Exists, Denied: found.Trigger.Denied,
		Expires: timeOrNil(found.Trigger.Expires)}
	for _, t := range found.Timers {
		one := InspectedView{
			TimerView: pg.newTimerView(t.Timer, payloadBytes), Until: timeOrNil(t.Until), Perhaps: t.Perhaps,
			Unheard: t.Unheard, Unread: t.Unread,
		}
		if o := t.Origin; o != (schedule.Origin{}) {
			one.Origin = keys.EventID(t.Key.String(), int64(o.Due), o.Attempt)
		}
		one.Trace, _ = event.Trace(t.TraceParent, t.Payload)
		if t.Hold != nil {
			one.Hold = t.Hold.Namespace.String()
		}
		v.Timers = append(v.Timers, one)
	}
}

// addRepetition adds the key's repetition, unless it cannot be read now.
func (pg *timerPage) addRepetition(r *http.Request, v *TimerPage, key keys.Key) {
	states, err := query.Repetitions(r.Context(), pg.sources.Index, []string{key.String()})
	if err != nil || len(states) == 0 || states[0].Repetition == nil {
		return
	}
	row := newRepeatingView(key, states[0].Repetition, v.At)
	v.Repeats = &row
}

func (pg *timerPage) policyOf(key keys.Key) PolicyView {
	policy := pg.sources.Policies.For(key)
	v := PolicyView{Text: policy.String(), MaxAttempts: policy.MaxAttempts(), Delays: []string{}}
	for _, d := range policy.Delays() {
		v.Delays = append(v.Delays, about(d))
	}
	return v
}

// lateOf describes the limit on lateness for timers of a key without one of their own.
func (pg *timerPage) lateOf(key keys.Key) string {
	limit := pg.sources.Late.For(key)
	return lateText(limit.Most, limit.Drop)
}
