package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/testenv"
)

const secret = "s3cr3t"

// connectorTo returns a connector that logs to the output.
func connectorTo(logs *output, patience time.Duration) connector {
	return connector{log: logTo(logs), patience: patience}
}

func redisAt(t *testing.T, url string) redisConfig {
	t.Helper()
	setEnv(t, map[string]string{"TIMERD_REDIS_URL": url})
	c, err := readConfig(sectionRedis)
	if err != nil {
		t.Fatal(err)
	}
	return c.Redis
}

func natsAt(t *testing.T, url string) natsConfig {
	t.Helper()
	setEnv(t, map[string]string{"TIMERD_NATS_URL": url, "TIMERD_DATA_DIR": t.TempDir()})
	c, err := readConfig(sectionNATS)
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
	var logs output
	c := connectorTo(&logs, 20*time.Second)
	connected := make(chan error, 2)
	redisConfig, natsConfig := redisAt(t, "redis://"+proxies[0].Addr()), natsAt(t, proxies[1].Addr())
	go func() {
		rdb, err := c.redis(t.Context(), redisConfig)
		if err == nil {
			err = rdb.Close()
		}
		connected <- err
	}()
	go func() {
		nc, err := c.nats(t.Context(), natsConfig)
		if err == nil {
			nc.Close()
		}
		connected <- err
	}()
	logs.wait(t, 10*time.Second, `server="Redis at redis://`+proxies[0].Addr()+`" attempt=1 delay=250ms`)
	logs.wait(t, 10*time.Second, `server="NATS at nats://`+proxies[1].Addr()+`" attempt=1 delay=250ms`)
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
	var logs output
	c := connectorTo(&logs, 400*time.Millisecond)
	if _, err := c.redis(t.Context(), redisAt(t, "redis://:"+secret+"@"+proxy.Addr())); err == nil || !strings.Contains(err.Error(), "did not answer for 400ms") {
		t.Errorf("Redis: %v", err)
	}
	if _, err := c.nats(t.Context(), natsAt(t, "nats://"+secret+"@"+proxy.Addr())); err == nil || !strings.Contains(err.Error(), "did not answer for 400ms") {
		t.Errorf("NATS: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c.patience = time.Minute
	if _, err := c.redis(ctx, redisAt(t, "redis://"+proxy.Addr())); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled start: %v", err)
	}
	lacks(t, logs.String(), secret)
}

func TestConnectEndsAtOnceWhenRefused(t *testing.T) {
	testenv.NoLeaks(t)
	acl := testenv.Redis(t, testenv.RedisACL("user default on >other ~* &* +@all\nuser app on >"+secret+" ~* &* +@all -ping\n"))
	open := testenv.Redis(t)
	var logs output
	c := connectorTo(&logs, time.Minute)
	for url, want := range map[string]string{
		acl.UserURL("app", "wrong"+secret, 0):        "WRONGPASS",
		"redis://:wrong" + secret + "@" + acl.Addr(): "WRONGPASS",
		acl.URL(0):                    "NOAUTH",
		acl.UserURL("app", secret, 0): "NOPERM",
		"redis://app:" + secret + "@" + open.Addr() + "": "WRONGPASS",
		open.URL(1 << 20): "DB index is out of range",
	} {
		_, err := c.redis(t.Context(), redisAt(t, url))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "refuses") {
			t.Errorf("%s: got %v, want %s", url, err, want)
		} else {
			lacks(t, err.Error(), secret)
		}
	}
	ns := testenv.NATS(t, func(o *server.Options) { o.Username, o.Password = "app", secret })
	for _, user := range []string{"", "app:wrong" + secret + "@", "wrong" + secret + "@"} {
		_, err := c.nats(t.Context(), natsAt(t, "nats://"+user+ns.Addr()))
		if !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("%q: got %v", user, err)
		} else {
			lacks(t, err.Error(), secret)
		}
	}
	if logs.String() != "" {
		t.Errorf("tried again:\n%s", &logs)
	}
}

func TestConnectNeedsJetStream(t *testing.T) {
	testenv.NoLeaks(t)
	ns := testenv.NATS(t, func(o *server.Options) { o.JetStream = false })
	c := connectorTo(&output{}, 100*time.Millisecond)
	if _, err := c.nats(t.Context(), natsAt(t, ns.URL())); !errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		t.Errorf("got %v", err)
	}
}

func TestEmbeddedNATSKeepsItsStreams(t *testing.T) {
	testenv.NoLeaks(t)
	ctx := t.Context()
	var logs output
	c := connectorTo(&logs, 10*time.Second)
	config := natsAt(t, "embedded://127.0.0.1:0")
	const maxPayload = 3 << 20

	start := func() (*embeddedNATS, jetstream.JetStream, func()) {
		t.Helper()
		ns, err := startEmbedded(config, maxPayload, c.log)
		if err != nil {
			t.Fatal(err)
		}
		nc, err := c.nats(ctx, config, nats.InProcessServer(ns))
		if err != nil {
			t.Fatal(err)
		}
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		return ns, js, func() {
			nc.Close()
			if err := ns.stop(); err != nil {
				t.Error(err)
			}
		}
	}
	ns, js, stop := start()
	if got := js.Conn().MaxPayload(); got < 2*maxPayload {
		t.Errorf("max_payload %d", got)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	outside, err := nats.Connect(ns.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	outside.Close()
	if _, err := startEmbedded(config, maxPayload, c.log); err == nil || !strings.Contains(err.Error(), "another timerd uses it") {
		t.Errorf("a second server on the same files: %v", err)
	}
	stop()

	_, js, stop = start()
	defer stop()
	s, err := js.Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := s.GetMsg(ctx, 1); err != nil || string(m.Data) != "kept" {
		t.Errorf("after a restart: %v, %v", m, err)
	}
}

func TestEmbeddedNATSAddress(t *testing.T) {
	testenv.NoLeaks(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var logs output
	if _, err := startEmbedded(natsAt(t, fmt.Sprintf("embedded://%s", taken.Addr())), 1, logTo(&logs)); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("a taken address: %v", err)
	}

	// The default address may belong to somebody else here; then it is taken too.
	if l, err := net.Listen("tcp", embeddedAddr); err == nil {
		defer l.Close()
	}
	ns, err := startEmbedded(natsAt(t, "embedded"), 1, logTo(&logs))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(logs.String(), "does not listen") {
		t.Errorf("no warning:\n%s", &logs)
	}
	if err := ns.stop(); err != nil {
		t.Error(err)
	}
}

func TestEmbeddedNATSTellsWhyItFails(t *testing.T) {
	config := natsAt(t, "embedded://127.0.0.1:0")
	config.DataDir = "/dev/null/data"
	if _, err := startEmbedded(config, 1, logTo(&output{})); err == nil || !strings.Contains(err.Error(), "TIMERD_DATA_DIR") {
		t.Errorf("got %v", err)
	}
}
