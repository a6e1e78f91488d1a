package connect

import (
	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
)

// RedisFix returns what to do about an error of Redis that does not say so itself.
func RedisFix(err error) string {
	if refusal := diag.Refusal(err); refusal != nil {
		return refusal.Fix()
	}
	if RedisRefused(err) {
		return "correct the user, the password or the database in TIMERD_REDIS_URL"
	}
	return "start Redis, or correct TIMERD_REDIS_URL"
}

// NATSFix returns what to do about an error of NATS that does not say so itself. The configuration is that of timerd itself.
func NATSFix(conf config.NATS, err error) string {
	switch refused := NATSRefused(err); {
	case refused && conf.Embedded:
		return "correct the user and the password in TIMERD_NATS_URL"
	case refused:
		return "correct the credentials in TIMERD_NATS_URL or TIMERD_NATS_CREDS, _CERT and _KEY"
	case conf.Embedded:
		return "start timerd, which has the NATS server, or correct TIMERD_NATS_URL"
	}
	return "start nats-server, or correct TIMERD_NATS_URL"
}
