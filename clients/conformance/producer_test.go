package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/testenv"
)

// step is one call of a producer, and its expected result.
type step struct {
	Do string
	setting
	Until bool // for get: a timerd may have to act first
	Want  json.RawMessage
}

// wanted is a case's expectation of a call.
type wanted struct {
	NotSet      bool   `json:"not_set"`
	Error, Says string // its kind, and a part of its text
	Due         string // as given: the time that the call named
	DueInMS     *int64 `json:"due_in_ms"`     // from the call, by the clock of Redis
	DueWithinMS *int64 `json:"due_within_ms"` // likewise, at most
}

func (s *suite) producer(t *testing.T) {
	for _, c := range s.Producer {
		t.Run(c.Name, func(t *testing.T) {
			var set time.Time // when the last one set is due
			for _, step := range c.Steps {
				switch step.Do {
				case "set", "repeat":
					set = s.set(t, step.Do, step.setting, step.Want)
				case "cancel":
					outcome, err := s.timers.Cancel(t.Context(), decodeKey(t, step.Key))
					if !refused(t, step, err) && !sameJSON([]byte(`"`+outcome+`"`), step.Want) {
						t.Errorf("cancel %s = %s, want %s", step.Key, outcome, step.Want)
					}
				case "get":
					s.get(t, step, set)
				default:
					t.Fatalf("no such step: %s", step.Do)
				}
			}
		})
	}
}

// refused checks an error, and reports whether one is wanted.
func refused(t *testing.T, what step, err error) bool {
	t.Helper()
	var want wanted
	_ = json.Unmarshal(what.Want, &want) // anything else wants no error
	switch {
	case want.Error == "":
		if err != nil {
			t.Fatalf("%s %s: %v", what.Do, what.Key, err)
		}
		return false
	case want.Error != "invalid":
		t.Fatalf("no such error: %s", want.Error)
	case !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), want.Says):
		t.Errorf("%s %s: %v, want it refused, saying %q", what.Do, what.Key, err, want.Says)
	}
	return true
}

func (s *suite) set(t *testing.T, do string, a setting, raw json.RawMessage) (due time.Time) {
	t.Helper()
	before := s.now(t)
	due, given, err := s.call(t, do, a)
	after := s.now(t)
	if string(raw) == `"planned"` {
		if err != nil || !due.IsZero() {
			t.Errorf("%s %s = %v, %v, want it planned", do, a.Key, due, err)
		}
		return due
	}
	var want wanted
	if err := strictly(raw, &want); err != nil {
		t.Fatal(err)
	}
	if want.NotSet {
		if !errors.Is(err, client.ErrNotSet) {
			t.Errorf("%s %s = %v, %v, want it not set", do, a.Key, due, err)
		}
		return due
	}
	if refused(t, step{Do: do, setting: a, Want: raw}, err) {
		return due
	}
	const ms = time.Millisecond
	earliest, latest := given, given
	if in := want.DueInMS; in != nil {
		earliest, latest = before.Truncate(ms).Add(time.Duration(*in)*ms), after.Add(time.Duration(*in)*ms)
	} else if in := want.DueWithinMS; in != nil {
		earliest, latest = before, after.Add(time.Duration(*in)*ms)
	}
	if due.Before(earliest) || due.After(latest) {
		t.Errorf("%s %s is due at %v, want from %v to %v", do, a.Key, due, earliest, latest)
	}
	return due
}

// call sets a timer, and returns the time that it was asked for, if it was.
func (s *suite) call(t *testing.T, do string, a setting) (due, given time.Time, err error) {
	t.Helper()
	ms := func(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
	in := func(n int64) time.Time { return s.now(t).Add(ms(n)).Truncate(time.Millisecond).UTC() }
	var options []client.SetOption
	if a.NX {
		options = append(options, client.NX())
	}
	if a.XX {
		options = append(options, client.XX())
	}
	if a.Attempt != nil {
		options = append(options, client.Attempt(*a.Attempt))
	}
	if a.Unless != nil {
		options = append(options, client.Unless(*a.Unless))
	}
	if a.If != nil {
		options = append(options, client.If(*a.If))
	}
	switch {
	case a.LateMS != nil && a.LateDrop:
		options = append(options, client.DropLate(ms(*a.LateMS)))
	case a.LateMS != nil:
		options = append(options, client.Late(ms(*a.LateMS)))
	}
	key := decodeKey(t, a.Key)
	if do == "set" {
		var when client.When
		switch {
		case a.AfterMS != nil:
			when = client.After(ms(*a.AfterMS))
		case a.AtInMS != nil:
			given = in(*a.AtInMS)
			when = client.At(given)
		case a.AtMS != nil:
			given = time.UnixMilli(*a.AtMS)
			when = client.At(given)
		}
		ctx := t.Context()
		if a.Trace != "" {
			ctx = context.WithValue(ctx, tracer{}, a.Trace)
		}
		due, err = s.timers.Set(ctx, key, a.Payload.bytes(), when, options...)
		return due, given, err
	}
	if a.FromInMS != nil {
		given = in(*a.FromInMS)
		options = append(options, client.From(given))
	}
	if a.UntilInMS != nil {
		options = append(options, client.Until(in(*a.UntilInMS)))
	}
	if a.Times != nil {
		options = append(options, client.Times(*a.Times))
	}
	if a.CatchupMS != nil {
		options = append(options, client.CatchUp(ms(*a.CatchupMS)))
	}
	by := client.Cron(a.Cron, a.TZ)
	if a.EveryMS != nil {
		by = client.Every(ms(*a.EveryMS))
	}
	due, err = s.timers.Repeat(t.Context(), key, a.Payload.bytes(), by, options...)
	return due, given, err
}

func (s *suite) get(t *testing.T, step step, set time.Time) {
	t.Helper()
	key := decodeKey(t, step.Key)
	timer, found, err := s.timers.Get(t.Context(), key)
	if refused(t, step, err) {
		return
	}
	if step.Until {
		testenv.Eventually(t, patience, func() bool {
			timer, found, err = s.timers.Get(t.Context(), key)
			return found || err != nil
		}, "the timer")
	}
	var want map[string]json.RawMessage
	if err := json.Unmarshal(step.Want, &want); err != nil {
		t.Fatal(err)
	}
	if found != (want != nil) {
		t.Errorf("get %s found a timer: %v, want %v", step.Key, found, want != nil)
	}
	if !found || want == nil {
		return
	}
	f := fields{
		"state": timer.State, "due": timer.Due.UnixMilli(), "attempt": timer.Attempt, "payload": timer.Payload,
		"late_ms": orNull(timer.Late.Milliseconds()), "repeat": orNull(timer.Repeat),
		"occurrence": orNull(timer.Occurrence), "unless": orNull(timer.Unless), "if": orNull(timer.If),
	}
	if timer.Due.Equal(set) {
		f["due"] = "as set"
	}
	f.check(t, "get "+step.Key, want)
}
