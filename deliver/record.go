package deliver

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Result is what came of a delivery.
type Result string

// The results.
const (
	ResultDelivered Result = "delivered" // the endpoint has it
	ResultRetry     Result = "retry"     // it failed, and timerd was asked for another attempt
	ResultDead      Result = "dead"      // it became a dead letter
	ResultPostponed Result = "postponed" // it is tried again later, and no attempt was used up
)

// Results returns all of them.
func Results() []Result { return []Result{ResultDelivered, ResultRetry, ResultDead, ResultPostponed} }

// Record is what the log of deliveries has about one of them: a JSON object. There is one for each time that a delivery
// was tried or held back, and a second one with the same ID and Attempt where a call is repeated.
type Record struct {
	ID      string `json:"id"`      // of the event
	Origin  string `json:"origin"`  // of the timer's first event, which is the webhook-id
	Subject string `json:"subject"` // of the event: the timer's key, as attributes of events have it
	Attempt int    `json:"attempt"`
	Host    string `json:"host"`   // host:port; empty if there is no usable URL
	Status  int    `json:"status"` // of HTTP; 0 without an answer
	Result  Result `json:"result"`
	// Duration is how long the call took, in milliseconds; 0 if there was none.
	Duration int64     `json:"duration_ms"`
	Time     time.Time `json:"time"`            // when it began
	Error    string    `json:"error,omitempty"` // what went wrong, and the first of the answer; at most about 1 KiB
}

// ParseRecord reads a message of the log.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("not a delivery: %w", err)
	}
	if r.ID == "" || r.Result == "" {
		return r, errors.New("not a delivery: it has no id or no result")
	}
	return r, nil
}
