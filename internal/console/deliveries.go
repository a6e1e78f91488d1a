package console

import (
	"strconv"
	"time"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/internal/history"
	"github.com/timerd-io/timerd/keys"
)

// hostBytes limits the bytes of a host shown; a name and a port have no more.
const hostBytes = 300

// DeliveryView is a record of the log of webhooks: one try or postponement of a delivery.
type DeliveryView struct {
	Stream     string    `json:"stream"`
	Seq        uint64    `json:"seq"`
	Stored     time.Time `json:"stored"`
	ID         string    `json:"id"` // of the event
	Origin     string    `json:"origin,omitempty"`
	Key        string    `json:"key,omitempty"`
	Ref        string    `json:"ref,omitempty"`
	At         time.Time `json:"at"` // its begin; its stored time, if that is unknown
	Attempt    int       `json:"attempt,omitempty"`
	Host       string    `json:"host,omitempty"`
	Status     int       `json:"status"` // of HTTP; 0 without an answer
	Result     string    `json:"result,omitempty"`
	DurationMS int64     `json:"duration"`
	Error      string    `json:"error,omitempty"`
	Fault      string    `json:"fault,omitempty"` // why it is no delivery record
	Event      uint64    `json:"event,omitempty"` // the number of its event in the stream of firings; 0 if not found
	Gone       bool      `json:"gone,omitempty"`  // its event is no longer in that stream

	Name keyText `json:"-"`
}

func newDeliveryView(r history.Record) DeliveryView {
	v := DeliveryView{Stream: r.Stream, Seq: r.Seq, Stored: r.Stored.UTC(), ID: clip(r.ID(), keys.MaxEventIDBytes),
		At: r.Stored.UTC(), Fault: r.Fault}
	if r.Fault != "" {
		return v
	}
	d, name := r.Delivery, r.Key.String()
	v.Key, v.Ref, v.Name = keys.EncodeText(name), encodeRef(name), newKeyText(r.Key)
	v.Origin, v.Attempt, v.Host, v.Status = clip(d.Origin, keys.MaxEventIDBytes), d.Attempt, clip(d.Host, hostBytes),
		d.Status
	v.Result, v.DurationMS, v.Error = clip(string(d.Result), 50), d.Duration, event.ClipText(d.Error)
	if !d.Time.IsZero() {
		v.At = d.Time
	}
	return v
}

// Tone returns the CSS class for the delivery's result.
func (v DeliveryView) Tone() string {
	switch event.Result(v.Result) {
	case event.ResultDelivered:
		return "good"
	case event.ResultRetry:
		return "owed"
	case event.ResultPostponed:
		return "held"
	case event.ResultDead:
		return "dead"
	}
	return ""
}

// StatusText returns the host's answer.
func (v DeliveryView) StatusText() string {
	switch {
	case v.Status != 0:
		return strconv.Itoa(v.Status)
	case v.Host == "" || v.Result == string(event.ResultPostponed) && v.DurationMS == 0:
		return "not called"
	}
	return "no answer"
}

// Took returns the duration of the call.
func (v DeliveryView) Took() string {
	if v.DurationMS <= 0 {
		return ""
	}
	return grouped(v.DurationMS) + " ms"
}

// sameWait reports whether two deliveries were postponed together.
func (v DeliveryView) sameWait(of DeliveryView) bool {
	return v.Result == string(event.ResultPostponed) && of.Result == v.Result && of.Host == v.Host &&
		of.Origin == v.Origin && of.Attempt == v.Attempt && of.Key == v.Key
}
