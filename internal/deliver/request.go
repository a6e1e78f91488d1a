package deliver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/timerd-io/timerd/event"
)

// content returns the body of a call, and its content type. The error is the reason why there is none.
func (e *Endpoint) content(ev event.Event) (body []byte, contentType string, err error) {
	if e.Body == BodyEvent {
		return ev.AppendJSON(nil), event.ContentType, nil
	}
	if ev.Data == nil {
		return nil, "", fmt.Errorf("nothing to deliver: the payload is %s", cmp.Or(ev.Status, event.StatusMissing))
	}
	return ev.Data, cmp.Or(ev.ContentType, event.DataContentType(ev.Data)), nil
}

// request returns a signed call. By Standard Webhooks the signature covers the time of the attempt, so each attempt has
// its own.
func (e *Endpoint) request(ctx context.Context, to target, ev event.Event, now time.Time) (*http.Request, error) {
	body, contentType, err := e.content(ev)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.url.String(), bytes.NewReader(body))
	if err != nil {
		return nil, urlError(err)
	}
	r.Header.Set("User-Agent", "timerd")
	maps.Copy(r.Header, e.Headers)
	r.Header.Set("Content-Type", contentType)
	if ev.TraceParent != "" { // event.Parse has checked both
		r.Header.Set("traceparent", ev.TraceParent)
		if ev.TraceState != "" {
			r.Header.Set("tracestate", ev.TraceState)
		}
	}
	id := event.WebhookID(ev)
	r.Header.Set(standardwebhooks.HeaderWebhookID, id)
	r.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	signatures := make([]string, len(e.signers))
	for i, signer := range e.signers {
		if signatures[i], err = signer.Sign(id, now, body); err != nil {
			return nil, errors.New("the delivery cannot be signed")
		}
	}
	if len(signatures) > 0 {
		r.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
	}
	return r, nil
}
