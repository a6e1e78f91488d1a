package streams_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for version, tooOld := range map[string]bool{
		"2.9.25": true, "1.99.0": true, "2.10.0": false, "2.15.2": false, "3.0.0-dev": false, "dev": false, "": false,
	} {
		err := streams.CheckVersion(version)
		if fault, ok := errors.AsType[*streams.Fault](err); ok != tooOld || ok &&
			!strings.Contains(fault.Error(),
				"nats-server "+version+" is too old; to fix it: upgrade to nats-server 2.10") {
			t.Errorf("%q: %v", version, err)
		}
	}
}

func TestBatchesAtVersions(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"2.11.9": false, "2.12.0": false, "2.14.9": false, "2.15.0": true,
		"2.15.2": true, "3.0.0-dev": true, "": false} {
		if streams.BatchesAt(version) != want {
			t.Errorf("%q: batches %t, want %t", version, !want, want)
		}
	}
}

func TestCheckAccount(t *testing.T) {
	t.Parallel()
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	other := testenv.NATS(t, func(o *server.Options) {
		without := server.NewAccount("WITHOUT")
		o.Accounts = []*server.Account{without}
		o.Users = []*server.User{{Username: "app", Password: "pw", Account: without}}
	})
	for want, js := range map[string]jetstream.JetStream{
		"runs without JetStream; to fix it: add a jetstream block": off.JetStream(),
		"off for this account; to fix it: enable it":               other.JetStream(nats.UserInfo("app", "pw")),
	} {
		account, err := streams.CheckAccount(t.Context(), js)
		if _, ok := errors.AsType[*streams.Fault](err); !ok || account != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v, %v", want, account, err)
		}
	}
	_, err := streams.Fired(t.Context(), off.JetStream(), streams.Config{}, 0)
	if want := "JetStream does not answer about stream TIMERS: NATS server: it runs without JetStream; to fix it: " +
		"add a jetstream block"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("the stream: %v", err)
	}
	if account, err := streams.CheckAccount(t.Context(), testenv.NATS(t).JetStream()); err != nil || account == nil {
		t.Errorf("with JetStream: %v, %v", account, err)
	}
}
