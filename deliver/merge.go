package deliver

import (
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/event"
)

func origin(ev event.Event) string { return ev.ID }

func first(ev event.Event) time.Time { return ev.Due }

func postponeError(d time.Duration, err error) error { return client.RetryAfter(d, err) }

func retryAfterError(d time.Duration, err error) error { return client.RetryAfter(d, err) }

func deadError(err error) error { return client.Dead(err) }
