package connect

import (
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/diag"
)

// RedisFix returns the fix for an error of Redis, or "" if the error names one itself.
func RedisFix(err error) string {
	if refusal := diag.Refusal(err); refusal != nil {
		return refusal.Fix()
	}
	switch {
	case redis.IsPermissionError(err) && strings.Contains(err.Error(), "access database"):
		return "let the user use this database, by alldbs, or by db= with all of its databases, or correct the " +
			"database in TIMERD_REDIS_URL"
	case redis.IsPermissionError(err):
		return "let the user run what deploy/users.acl grants to timerd, or correct the user in TIMERD_REDIS_URL"
	case RedisRefused(err):
		return "correct the user, the password or the database in TIMERD_REDIS_URL"
	}
	return "start Redis, or correct TIMERD_REDIS_URL"
}

// settings names the settings of a server for fixes: variables, or members of a context of the nats command.
type settings struct{ url, ca, cert, pair, files, login string }

// natsSettings names the settings that conf was made from.
func natsSettings(conf config.NATS) settings {
	if conf.Context != "" {
		in := " in " + conf.ContextFile
		return settings{
			url: "url" + in, ca: "ca" + in, cert: conf.ContextFile, pair: "cert and key" + in,
			files: "ca, cert and key", login: conf.ContextFile,
		}
	}
	return settings{
		url: "TIMERD_NATS_URL", ca: "TIMERD_NATS_CA", cert: "TIMERD_NATS_CERT",
		pair: "TIMERD_NATS_CERT and TIMERD_NATS_KEY", files: "TIMERD_NATS_CA, _CERT and _KEY",
		login: "TIMERD_NATS_URL or TIMERD_NATS_CREDS, _CERT and _KEY",
	}
}

// NATSFix returns the fix for an error of NATS, or "" if the error names one itself. conf is timerd's own
// configuration.
func NATSFix(conf config.NATS, err error) string {
	of := natsSettings(conf)
	certificate := certificateFix(of.url, of.ca, conf.CA != "", err)
	switch refused := NATSRefused(err); {
	case certificate != "":
		return certificate
	case errors.Is(err, nats.ErrSecureConnWanted):
		return "the server speaks no TLS: write nats:// as " + of.url + ", without " + of.files +
			"; or give it a certificate"
	case wantsCertificate(err) && conf.Cert == "":
		return "set " + of.pair + ": the server wants a client certificate"
	case wantsCertificate(err):
		return "let the server know the authority of the certificate in " + of.cert +
			", by ca_file in its tls block, or give timerd another certificate"
	case refused && conf.Embedded:
		return "correct the user and the password in TIMERD_NATS_URL"
	case refused:
		return "correct the credentials in " + of.login
	case conf.Embedded:
		return "start timerd, which has the NATS server, or correct TIMERD_NATS_URL"
	}
	return "start nats-server, or correct " + of.url
}

// wantsCertificate reports whether a NATS server has refused the client's certificate, or missed one. The server does
// so after the handshake, when the client may be writing already; then it closes the connection, and the client's
// library reports only that.
func wantsCertificate(err error) bool {
	return isAlert(err) && strings.Contains(err.Error(), "certificate") || errors.Is(err, nats.ErrTLS)
}
