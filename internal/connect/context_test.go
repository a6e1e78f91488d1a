package connect_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/testenv"
)

// natsContext writes a context of the nats command, and reads the settings with it.
func natsContext(t *testing.T, members map[string]any) config.NATS {
	t.Helper()
	text, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, "context.json", string(text))
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_CONTEXT": file})
	c, err := config.Read(config.SectionNATS)
	if err != nil {
		t.Fatal(err)
	}
	return c.NATS
}

func writeFile(t *testing.T, name, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// newKeys returns a pair of keys, its public key and its seed.
func newKeys(t *testing.T, create func() (nkeys.KeyPair, error)) (pair nkeys.KeyPair, public, seed string) {
	t.Helper()
	pair, err := create()
	if err != nil {
		t.Fatal(err)
	}
	if public, err = pair.PublicKey(); err != nil {
		t.Fatal(err)
	}
	secret, err := pair.Seed()
	if err != nil {
		t.Fatal(err)
	}
	return pair, public, string(secret)
}

// operated starts a server that takes JWTs, and returns those of a user and of a bearer, and the user's seed.
func operated(t *testing.T) (s *testenv.NATSServer, user, bearer, seed string) {
	t.Helper()
	operator, operatorKey, _ := newKeys(t, nkeys.CreateOperator)
	account, accountKey, _ := newKeys(t, nkeys.CreateAccount)
	_, systemKey, _ := newKeys(t, nkeys.CreateAccount)
	_, userKey, seed := newKeys(t, nkeys.CreateUser)
	encode := func(claims interface {
		Encode(nkeys.KeyPair) (string, error)
	}, by nkeys.KeyPair,
	) string {
		token, err := claims.Encode(by)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	own := jwt.NewOperatorClaims(operatorKey)
	own.SystemAccount = systemKey
	of := jwt.NewAccountClaims(accountKey)
	of.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: -1, MemoryStorage: -1, Streams: -1, Consumer: -1}
	resolver := &server.MemAccResolver{}
	for key, claims := range map[string]*jwt.AccountClaims{accountKey: of, systemKey: jwt.NewAccountClaims(systemKey)} {
		if err := resolver.Store(key, encode(claims, operator)); err != nil {
			t.Fatal(err)
		}
	}
	trusted, err := jwt.DecodeOperatorClaims(encode(own, operator))
	if err != nil {
		t.Fatal(err)
	}
	s = testenv.NATS(t, func(o *server.Options) {
		o.TrustedOperators, o.AccountResolver, o.SystemAccount = []*jwt.OperatorClaims{trusted}, resolver, systemKey
	})
	claims := jwt.NewUserClaims(userKey)
	user = encode(claims, account)
	claims.BearerToken = true
	return s, user, encode(claims, account), seed
}

// Each way to log in that a context has works with a server that lets in nobody else.
func TestConnectByNATSContext(t *testing.T) {
	testenv.NoLeaks(t)
	byUser := testenv.NATS(t, func(o *server.Options) { o.Username, o.Password = "app", secret })
	byToken := testenv.NATS(t, func(o *server.Options) { o.Authorization = secret })
	_, nkey, nkeySeed := newKeys(t, nkeys.CreateUser)
	_, _, strangerSeed := newKeys(t, nkeys.CreateUser)
	byNKey := testenv.NATS(t, func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: nkey}} })
	byJWT, user, bearer, seed := operated(t)
	creds := func(seed string) string {
		return writeFile(t, "nats.creds", "-----BEGIN NATS USER JWT-----\n"+user+"\n------END NATS USER JWT------\n\n"+
			"-----BEGIN USER NKEY SEED-----\n"+seed+"\n------END USER NKEY SEED------\n")
	}
	authority, stranger := testenv.NewAuthority(t), testenv.NewAuthority(t)
	byTLS := func(first bool) *testenv.NATSServer {
		cert, key := authority.Issue("nats", "127.0.0.1")
		settings, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: cert, KeyFile: key, CaFile: authority.File,
			Verify: true})
		if err != nil {
			t.Fatal(err)
		}
		return testenv.NATS(t, func(o *server.Options) {
			o.TLS, o.TLSVerify, o.TLSConfig, o.TLSHandshakeFirst = true, true, settings, first
		})
	}
	cert, key := authority.Issue("timerd")
	strangerCert, strangerKey := stranger.Issue("timerd")
	certificate := map[string]any{"ca": authority.File, "cert": cert, "key": key}
	hub := testenv.NATS(t, func(o *server.Options) { o.JetStreamDomain = "hub" })
	inbox := testenv.NATS(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "app", Password: secret, Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Allow: []string{"_T.>"}},
		}}}
	})
	const credentials = "correct the credentials in FILE"
	for name, test := range map[string]struct {
		at   *testenv.NATSServer
		with map[string]any
		bad  map[string]any // changes with, so that the server refuses; nil for none
		fix  string
	}{
		"user": {byUser, map[string]any{"user": "app", "password": secret},
			map[string]any{"password": secret + "x"}, credentials},
		"token": {byToken, map[string]any{"token": secret}, map[string]any{"token": secret + "x"}, credentials},
		"nkey": {byNKey, map[string]any{"nkey": writeFile(t, "u.nk", nkeySeed)},
			map[string]any{"nkey": writeFile(t, "x.nk", strangerSeed)}, credentials},
		"creds": {byJWT, map[string]any{"creds": creds(seed)}, map[string]any{"creds": creds(strangerSeed)},
			credentials},
		"JWT": {byJWT, map[string]any{"user_jwt": user, "user_seed": seed},
			map[string]any{"user_seed": strangerSeed}, credentials},
		"bearer": {byJWT, map[string]any{"user_jwt": bearer}, map[string]any{"user_jwt": user}, credentials},
		"TLS": {byTLS(false), certificate, map[string]any{"cert": strangerCert, "key": strangerKey},
			"let the server know the authority of the certificate in FILE"},
		"TLS first": {byTLS(true), with(certificate, "tls_first", true), map[string]any{"ca": stranger.File},
			"let the file of ca in FILE hold"},
		"domain": {hub, map[string]any{"jetstream_domain": "hub"}, map[string]any{"jetstream_domain": "spoke"},
			"correct jetstream_domain or"},
		"prefix": {hub, map[string]any{"jetstream_api_prefix": "$JS.hub.API"}, nil, ""},
		"inbox":  {inbox, map[string]any{"user": "app", "password": secret, "inbox_prefix": "_T"}, nil, ""},
	} {
		members := with(test.with, "url", test.at.URL())
		conf := natsContext(t, members)
		var logs testenv.Output
		js, err := connector(&logs, 0).JetStream(t.Context(), conf)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, &logs)
			continue
		}
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TEST"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		js.Conn().Close()
		if test.bad == nil {
			continue
		}
		maps.Copy(members, test.bad)
		conf = natsContext(t, members)
		if js, err = connector(&logs, 0).JetStream(t.Context(), conf); err == nil {
			t.Errorf("%s: connected with %v", name, test.bad)
			js.Conn().Close()
			continue
		}
		f := diag.Of("nats", err, connect.NATSFix(conf, err))
		if !strings.Contains(f.Fix, strings.ReplaceAll(test.fix, "FILE", conf.ContextFile)) ||
			strings.Contains(f.Fix, "TIMERD_NATS_URL") {
			t.Errorf("%s: %s\n\tfix: %s\n\twant %s", name, f.Text, f.Fix, test.fix)
		}
		for _, hidden := range []string{secret, user, bearer, seed, nkeySeed, strangerSeed} {
			testenv.Lacks(t, logs.String()+f.Text+f.Fix, hidden)
		}
	}
	conf := natsContext(t, map[string]any{"url": "nats://127.0.0.1:1"})
	var logs testenv.Output
	_, err := connector(&logs, 0).JetStream(t.Context(), conf)
	if f := diag.Of("nats", err,
		connect.NATSFix(conf, err)); f.Fix != "start nats-server, or correct url in "+conf.ContextFile {
		t.Errorf("a server that is away: %+v", f)
	}
}

// with returns members with one more.
func with(members map[string]any, name string, value any) map[string]any {
	members = maps.Clone(members)
	members[name] = value
	return members
}
