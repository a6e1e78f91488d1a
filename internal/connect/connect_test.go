package connect_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/timerd-io/timerd/internal/config"
	"github.com/timerd-io/timerd/internal/connect"
	"github.com/timerd-io/timerd/internal/devserver"
	"github.com/timerd-io/timerd/internal/streams"
	"github.com/timerd-io/timerd/internal/testenv"
)

const secret = "s3cr3t"

// connector returns a connector that logs to the output.
func connector(logs *testenv.Output, patience time.Duration) connect.Connector {
	return connect.Connector{Logger: logs.Logger(), Patience: patience}
}

func redisAt(t *testing.T, url string) config.Redis {
	t.Helper()
	testenv.SetVariables(t, map[string]string{"TIMERD_REDIS_URL": url})
	c, err := config.Read(config.SectionRedis)
	if err != nil {
		t.Fatal(err)
	}
	return c.Redis
}

func natsAt(t *testing.T, url string) config.NATS {
	t.Helper()
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": url})
	c, err := config.Read(config.SectionNATS)
	if err != nil {
		t.Fatal(err)
	}
	return c.NATS
}

func TestConnectWaitsForServersThatAreAway(t *testing.T) {
	testenv.NoLeaks(t)
	proxies := []*testenv.Proxy{
		testenv.NewProxy(t, testenv.Redis(t).Addr()),
		testenv.NewProxy(t, testenv.NATS(t).Addr()),
	}
	for _, p := range proxies {
		p.Cut()
	}
	var logs testenv.Output
	c := connector(&logs, time.Minute)
	connected := make(chan error, 2)
	redisConf, natsConf := redisAt(t, "redis://"+proxies[0].Addr()), natsAt(t, proxies[1].Addr())
	go func() {
		rdb, err := c.Redis(t.Context(), redisConf)
		if err == nil {
			err = rdb.Close()
		}
		connected <- err
	}()
	go func() {
		js, err := c.JetStream(t.Context(), natsConf)
		if err == nil {
			js.Conn().Close()
		}
		connected <- err
	}()
	for _, server := range []string{"Redis at redis://" + proxies[0].Addr(), "NATS at nats://" + proxies[1].Addr()} {
		// The delay is 250 ms or up to a fifth less.
		line := regexp.MustCompile(`server="` + regexp.QuoteMeta(server) + `" err=.* attempt=1 delay=2[0-5]\d`)
		testenv.Eventually(t, time.Minute, func() bool { return line.MatchString(logs.String()) }, "the log of "+server)
	}
	for _, p := range proxies {
		p.Heal()
	}
	for range proxies {
		if err := <-connected; err != nil {
			t.Error(err)
		}
	}
}

func TestConnectGivesUp(t *testing.T) {
	testenv.NoLeaks(t)
	proxy := testenv.NewProxy(t, "127.0.0.1:1")
	proxy.Cut()
	var logs testenv.Output
	c := connector(&logs, 400*time.Millisecond)
	if _, err := c.Redis(t.Context(), redisAt(t, "redis://:"+secret+"@"+proxy.Addr())); err == nil ||
		!strings.Contains(err.Error(), "did not answer for 400ms") {
		t.Errorf("Redis: %v", err)
	}
	if _, err := c.JetStream(t.Context(), natsAt(t, "nats://"+secret+"@"+proxy.Addr())); err == nil ||
		!strings.Contains(err.Error(), "did not answer for 400ms") {
		t.Errorf("NATS: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.Patience = time.Minute
	if _, err := c.Redis(ctx, redisAt(t, "redis://"+proxy.Addr())); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled start: %v", err)
	}
	testenv.Lacks(t, logs.String(), secret)
}

func TestConnectEndsAtOnceWhenRefused(t *testing.T) {
	testenv.NoLeaks(t)
	acl := testenv.Redis(t,
		devserver.ACL("user default on >other ~* &* +@all\nuser app on >"+secret+" ~* &* +@all -ping\n"))
	open := testenv.Redis(t)
	var logs testenv.Output
	c := connector(&logs, time.Minute)
	for url, want := range map[string]string{
		acl.UserURL("app", "wrong"+secret, 0):        "WRONGPASS",
		"redis://:wrong" + secret + "@" + acl.Addr(): "WRONGPASS",
		acl.URL(0):                    "NOAUTH",
		acl.UserURL("app", secret, 0): "NOPERM",
		"redis://app:" + secret + "@" + open.Addr() + "": "WRONGPASS",
		open.URL(1 << 20): "DB index is out of range",
	} {
		_, err := c.Redis(t.Context(), redisAt(t, url))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "refuses") {
			t.Errorf("%s: got %v, want %s", url, err, want)
		} else {
			testenv.Lacks(t, err.Error(), secret)
		}
	}
	ns := testenv.NATS(t, func(o *server.Options) { o.Username, o.Password = "app", secret })
	for _, user := range []string{"", "app:wrong" + secret + "@", "wrong" + secret + "@"} {
		_, err := c.JetStream(t.Context(), natsAt(t, "nats://"+user+ns.Addr()))
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%q: got %v", user, err)
		} else {
			testenv.Lacks(t, err.Error(), secret)
		}
	}
	if logs.String() != "" {
		t.Errorf("tried again:\n%s", &logs)
	}
}

// A server that cannot serve ends the start at once: it answers, and trying again changes nothing.
func TestConnectNeedsJetStream(t *testing.T) {
	testenv.NoLeaks(t)
	off := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	other := testenv.NATS(t, func(o *server.Options) {
		without := server.NewAccount("WITHOUT")
		o.Accounts = []*server.Account{without}
		o.Users = []*server.User{{Username: "app", Password: secret, Account: without}}
	})
	for url, want := range map[string]string{
		off.URL(): "it runs without JetStream; to fix it: add a jetstream block",
		"nats://app:" + secret + "@" + other.Addr(): "JetStream is off for this account; to fix it: enable it",
		testenv.OldNATS(t, testenv.NATS(t),
			"2.9.25"): "nats-server 2.9.25 is too old; to fix it: upgrade to nats-server 2.10",
	} {
		var logs testenv.Output
		js, err := connector(&logs, time.Minute).JetStream(t.Context(), natsAt(t, url))
		if err == nil {
			js.Conn().Close()
		}
		if _, ok := errors.AsType[*streams.Fault](err); !ok || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "answer") {
			t.Errorf("%s: got %v, want %s", url, err, want)
		} else {
			testenv.Lacks(t, err.Error(), secret)
		}
		if logs.String() != "" {
			t.Errorf("%s: tried again:\n%s", url, &logs)
		}
	}
}

// A server of a cluster that is not up yet takes connections, and answers nothing of JetStream: that is waited for, and
// nothing else.
func TestConnectWaitsForALeader(t *testing.T) {
	testenv.NoLeaks(t)
	ns := testenv.NATS(t, func(o *server.Options) {
		o.ServerName = "one-of-three"
		o.Cluster = server.ClusterOpts{Name: "three", Host: "127.0.0.1", Port: server.RANDOM_PORT}
		o.Routes = server.RoutesFromStr("nats://127.0.0.1:1,nats://127.0.0.1:2") // which nobody has
	})
	js := ns.JetStream()
	conf := natsAt(t, ns.URL())
	for want, c := range map[string]struct {
		err error
		few bool // tries
	}{"did not answer for": {}, "of another installation": {errors.New("of another installation"), true}} {
		var logs testenv.Output
		tries := 0
		err := connector(&logs, 2*time.Second).Streams(t.Context(), conf, func(ctx context.Context) error {
			tries++
			if c.err != nil {
				return c.err
			}
			within, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			_, err := js.Stream(within, "TIMERS")
			return err
		})
		if err == nil || !strings.Contains(err.Error(), want) || (tries == 1) != c.few {
			t.Errorf("%d tries, %v; want %q\n%s", tries, err, want, &logs)
		}
	}
}
