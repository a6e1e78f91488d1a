package consume

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/timerd-io/timerd/client"
)

// The results in a command's answers.
const (
	ResultDone     = "done"
	ResultRetry    = "retry"
	ResultPostpone = "postpone"
	ResultDead     = "dead"
)

// answer is one line of the command's output about one event.
type answer struct {
	ID     string `json:"id"`
	Result string `json:"result"`
	Delay  string `json:"delay"`  // of a retry or postponement: a Go duration
	Error  string `json:"error"`  // of a retry or postponement: the reason
	Reason string `json:"reason"` // of a dead letter
}

// readAnswer reads a line of the command's output. It reports false for a line without an answer: no JSON object, or
// one without a result.
func readAnswer(line []byte) (answer, bool) {
	var a answer
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] != '{' || json.Unmarshal(line, &a) != nil || a.Result == "" {
		return answer{}, false
	}
	return a, true
}

// verdict returns the handler's result for the event of the answer. A faulty answer is a failed attempt, and the error
// names the fault: the command has finished with the event, with an unknown result.
func (a answer) verdict() error {
	delay, err := time.ParseDuration(a.Delay)
	reason := errors.New(cmp.Or(a.Error, "the command gave no error"))
	if a.Delay != "" && err != nil {
		return fmt.Errorf("the command's answer has the delay %q, want a duration such as 30s or 1h30m", a.Delay)
	}
	switch a.Result {
	case ResultDone:
		return nil
	case ResultRetry:
		if a.Delay == "" {
			return reason
		}
		return client.RetryAfter(delay, reason)
	case ResultPostpone:
		if a.Delay == "" {
			return errors.New("the command postponed the event without a delay, such as 30s")
		}
		return client.Postpone(delay, reason)
	case ResultDead:
		return client.Dead(errors.New(cmp.Or(a.Reason, a.Error, "the command gave no reason")))
	}
	return fmt.Errorf("the command's answer has the result %q, want done, retry, postpone or dead", a.Result)
}
