package event

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// Result is the result of a delivery.
type Result string

// The results.
const (
	ResultDelivered Result = "delivered" // the endpoint has it
	ResultRetry     Result = "retry"     // it failed, and timerd deliver asked for another attempt
	ResultDead      Result = "dead"      // it became a dead letter
	ResultPostponed Result = "postponed" // it is tried again later, and no attempt is used up
)

// WebhookID returns the webhook-id of an event's deliveries: the same for all attempts, and different from that of any
// other timer. It is the id of the timer's first event with each dot written %2E, since Standard Webhooks joins id,
// time and content by dots.
func WebhookID(e Event) string { return strings.ReplaceAll(MessageID(e.FirstID()), ".", "%2E") }

// Results returns all results.
func Results() []Result { return []Result{ResultDelivered, ResultRetry, ResultDead, ResultPostponed} }

// Delivery is an entry in the log of webhooks: a JSON object. There is an entry for each time that a delivery was tried
// or postponed. If a call was repeated, a second entry has the same ID and Attempt.
type Delivery struct {
	ID      string `json:"id"`      // of the event
	Origin  string `json:"origin"`  // of the timer's first event; the source of the webhook-id
	Subject string `json:"subject"` // of the event: the timer's key, encoded like attributes of events
	Attempt int    `json:"attempt"`
	Host    string `json:"host"`   // host:port; empty if there is no usable URL
	Status  int    `json:"status"` // of HTTP; 0 without an answer
	Result  Result `json:"result"`
	// Duration is the length of the call in milliseconds, rounded up; 0 without a call.
	Duration int64     `json:"duration_ms"`
	Time     time.Time `json:"time"`            // its begin
	Error    string    `json:"error,omitempty"` // the error, and the beginning of the answer; at most about 1 KiB
}

// ParseDelivery reads a message of the log. Time is in UTC.
func ParseDelivery(data []byte) (Delivery, error) {
	var d Delivery
	if err := json.Unmarshal(data, &d); err != nil {
		return Delivery{}, fmt.Errorf("not a delivery: %s", ClipText(err.Error()))
	}
	d.Time = d.Time.UTC()
	switch {
	case d.ID == "" || d.Result == "":
		return Delivery{}, errors.New("not a delivery: id or result is missing")
	case !isWritable(d.Time):
		return Delivery{}, errors.New("not a delivery: its time is in no year from 0 to 9999")
	}
	return d, nil
}

// Key returns the timer's key.
func (d Delivery) Key() (keys.Key, error) {
	name, err := keys.DecodeText(d.Subject)
	if err != nil {
		return keys.Key{}, fmt.Errorf("subject: %s", ClipText(err.Error()))
	}
	return keys.Parse(name)
}
