package connect

import (
	"errors"
	"strings"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/streams"
)

// RedisFix takes an error of [Connector.Redis] apart: what is wrong, and what to do.
func RedisFix(err error) (text, fix string) {
	if fault, ok := errors.AsType[*TLSFault](err); ok {
		return withoutFix(err, fault.Fix), fault.Fix
	}
	if RedisRefused(err) {
		return err.Error(), "correct the user, the password or the database in TIMERD_REDIS_URL"
	}
	return err.Error(), "start Redis, or correct TIMERD_REDIS_URL"
}

// NATSFix takes an error of [Connector.NATS] or [Connector.JetStream] apart: what is wrong, and what to do. The
// configuration is that of timerd itself.
func NATSFix(conf config.NATS, err error) (text, fix string) {
	fault, ok := errors.AsType[*streams.Fault](err)
	switch {
	case ok:
		return withoutFix(err, fault.Fix), fault.Fix
	case NATSRefused(err) && conf.Embedded:
		return err.Error(), "correct the user and the password in TIMERD_NATS_URL"
	case NATSRefused(err):
		return err.Error(), "correct the credentials in TIMERD_NATS_URL or TIMERD_NATS_CREDS, _CERT and _KEY"
	case conf.Embedded:
		return err.Error(), "start timerd, which has the NATS server, or correct TIMERD_NATS_URL"
	}
	return err.Error(), "start nats-server, or correct TIMERD_NATS_URL"
}

// withoutFix returns the text of an error that ends with what to do.
func withoutFix(err error, fix string) string {
	return strings.TrimSuffix(err.Error(), "; to fix it: "+fix)
}
