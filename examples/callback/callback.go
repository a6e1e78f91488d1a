package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/client"
)

// namespace is that of the timers: pay:order:callback:<order>.
const namespace = "pay:order:callback"

// webhookIDPrefix and the order are the id of a webhook.
const webhookIDPrefix = "payment_"

const (
	// maxRetryAfter bounds what a merchant may ask for.
	maxRetryAfter = 24 * time.Hour
	// maxAnswer is how much of a merchant's answer is read, so that its connection
	// can be used again.
	maxAnswer = 64 << 10
)

// payment is the payload of a timer.
type payment struct {
	Order    string    `json:"order"`
	Merchant string    `json:"merchant"`
	Amount   int64     `json:"amount"` // cents
	Currency string    `json:"currency"`
	PaidAt   time.Time `json:"paid_at"`
}

func (p payment) key() string { return namespace + ":" + p.Order }

// notification is what a merchant gets, in the form that Standard Webhooks
// recommends.
type notification struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      payment   `json:"data"`
}

// setCallbacks sets the timer of each payment's first callback.
func setCallbacks(ctx context.Context, timers *client.Timers, payments []payment, after time.Duration) error {
	settings := make([]client.Setting, len(payments))
	for i, p := range payments {
		payload, err := json.Marshal(p)
		if err != nil {
			return fmt.Errorf("payment of order %s: %w", p.Order, err)
		}
		settings[i] = client.Setting{Key: p.key(), Payload: payload, When: client.After(after)}
	}
	_, err := timers.SetMany(ctx, settings)
	return err
}

// endpoint is where a merchant wants to be called. Neither URL nor secret travels
// in a payload: a merchant may change them while callbacks are pending.
type endpoint struct {
	url     string
	webhook *standardwebhooks.Webhook // signs with the secret that the merchant knows
}

// sender calls merchants.
type sender struct {
	endpoints map[string]endpoint // by merchant
	http      *http.Client
}

// newSender returns a sender that gives a merchant so much time for a whole answer.
func newSender(endpoints map[string]endpoint, timeout time.Duration) *sender {
	return &sender{
		endpoints: endpoints,
		http: &http.Client{
			Transport: &http.Transport{MaxIdleConnsPerHost: client.DefaultConcurrency, IdleConnTimeout: time.Minute},
			Timeout:   timeout,
			// The signature is for this URL's owner, so another one is not followed.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// verdict is what a merchant's answer means.
type verdict int

const (
	failed    verdict = iota // to be tried again, by the policy
	postponed                // to be tried again, when the merchant says
	delivered
	hopeless
)

// answer is what came of a call.
type answer struct {
	verdict verdict
	after   time.Duration // of postponed
	text    string        // "200 OK", or what went wrong
}

// err returns the answer as client.Consume wants to be told.
func (a answer) err() error {
	switch err := errors.New(a.text); a.verdict {
	case delivered:
		return nil
	case hopeless:
		return client.Dead(err)
	case postponed:
		return client.RetryAfter(a.after, err)
	default:
		return err
	}
}

// call tells a merchant of the payment that an event holds.
//
// The id of the webhook is that of the order, the same at each attempt: a merchant
// that has seen it already answers 2xx and does nothing. That is needed, because a
// call is repeated when its 2xx is lost on the way.
func (s *sender) call(ctx context.Context, e client.Event) answer {
	var p payment
	if err := json.Unmarshal(e.Data, &p); err != nil {
		return answer{verdict: hopeless, text: "the payload is no payment: " + err.Error()}
	}
	to, ok := s.endpoints[p.Merchant]
	if !ok {
		return answer{verdict: hopeless, text: fmt.Sprintf("no merchant %q", p.Merchant)}
	}
	request, err := to.request(ctx, p, time.Now())
	if err != nil {
		return answer{verdict: hopeless, text: err.Error()}
	}
	response, err := s.http.Do(request)
	if err != nil {
		return answer{verdict: failed, text: s.explain(err)}
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.CopyN(io.Discard, response.Body, maxAnswer); err != nil && !errors.Is(err, io.EOF) {
		return answer{verdict: failed, text: s.explain(err)}
	}
	return judge(response, time.Now())
}

// request returns a signed request. Standard Webhooks wants the time of the attempt
// in it, so each attempt is signed anew.
func (to endpoint) request(ctx context.Context, p payment, now time.Time) (*http.Request, error) {
	body, err := json.Marshal(notification{Type: "payment.succeeded", Timestamp: p.PaidAt, Data: p})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	id := webhookIDPrefix + p.Order
	signature, err := to.webhook.Sign(id, now, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set(standardwebhooks.HeaderWebhookID, id)
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	return request, nil
}

// judge reads a merchant's answer.
func judge(response *http.Response, now time.Time) answer {
	a := answer{verdict: failed, text: response.Status}
	switch code := response.StatusCode; {
	case code >= 200 && code <= 299:
		a.verdict = delivered
	case code == http.StatusGone:
		a.verdict = hopeless
	case code == http.StatusTooManyRequests, code == http.StatusServiceUnavailable:
		if after, ok := retryAfter(response.Header.Get("Retry-After"), now); ok {
			a.verdict, a.after = postponed, after
		}
	}
	return a
}

// retryAfter reads the header Retry-After, seconds or a date, and tells whether
// there is a valid one. The result is from 0 to maxRetryAfter.
func retryAfter(header string, now time.Time) (time.Duration, bool) {
	if seconds, err := strconv.ParseUint(header, 10, 64); err == nil {
		if seconds > uint64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), maxRetryAfter), true
}

// explain says why there is no answer, without the URL.
func (s *sender) explain(err error) string {
	if failure, ok := errors.AsType[*url.Error](err); ok {
		err = failure.Err
	}
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %v", s.http.Timeout)
	case errors.Is(err, io.EOF):
		return "connection closed"
	}
	return err.Error()
}
