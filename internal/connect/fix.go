package connect

import (
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
)

// RedisFix returns what to do about an error of Redis that does not say so itself.
func RedisFix(err error) string {
	if refusal := diag.Refusal(err); refusal != nil {
		return refusal.Fix()
	}
	switch {
	case redis.IsPermissionError(err) && strings.Contains(err.Error(), "access database"):
		return "let the user use this database, by alldbs, or by db= with all of its databases, or correct the database in TIMERD_REDIS_URL"
	case redis.IsPermissionError(err):
		return "let the user run what deploy/users.acl grants to timerd, or correct the user in TIMERD_REDIS_URL"
	case RedisRefused(err):
		return "correct the user, the password or the database in TIMERD_REDIS_URL"
	}
	return "start Redis, or correct TIMERD_REDIS_URL"
}

// NATSFix returns what to do about an error of NATS that does not say so itself. The configuration is that of timerd itself.
func NATSFix(conf config.NATS, err error) string {
	certificate := certificateFix("TIMERD_NATS", conf.CA != "", err)
	switch refused := NATSRefused(err); {
	case certificate != "":
		return certificate
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server speaks no TLS: write nats:// in TIMERD_NATS_URL, without TIMERD_NATS_CA, _CERT and _KEY; or give it a certificate"
	case wantsCertificate(err) && conf.Cert == "":
		return "set TIMERD_NATS_CERT and TIMERD_NATS_KEY: the server wants a client certificate"
	case wantsCertificate(err):
		return "let the server know the authority of the certificate in TIMERD_NATS_CERT, by ca_file in its tls block, or give timerd another certificate"
	case refused && conf.Embedded:
		return "correct the user and the password in TIMERD_NATS_URL"
	case refused:
		return "correct the credentials in TIMERD_NATS_URL or TIMERD_NATS_CREDS, _CERT and _KEY"
	case conf.Embedded:
		return "start timerd, which has the NATS server, or correct TIMERD_NATS_URL"
	}
	return "start nats-server, or correct TIMERD_NATS_URL"
}

// wantsCertificate tells whether a NATS server has refused the client's certificate, or missed one. It does so after the handshake, when the
// client may be writing already: then the connection is closed, and the client's library says that.
func wantsCertificate(err error) bool {
	return isAlert(err) && strings.Contains(err.Error(), "certificate") || errors.Is(err, nats.ErrTLS)
}
