package testenv_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/testenv"
)

func TestProxyCutAndHeal(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := testenv.Redis(t)
	p := testenv.NewProxy(t, s.Addr())
	c := s.Client(func(o *redis.Options) {
		o.Addr = p.Addr()
		o.ReadTimeout, o.DialTimeout, o.MaxRetries, o.DialerRetries = 200*time.Millisecond, time.Second, -1, 1
	})
	if err := c.Ping(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	breaks := []struct {
		name string
		do   func()
	}{
		{"Cut", p.Cut},
		{"Blackhole", p.Blackhole},
		{"Delay", func() { p.Delay(time.Second) }},
		{"Cut twice", func() { p.Cut(); p.Cut() }},
	}
	for _, b := range breaks {
		b.do()
		if err := c.Ping(ctx).Err(); err == nil {
			t.Errorf("%s: PING still answered", b.name)
		}
		p.Heal()
		testenv.Eventually(t, time.Minute, func() error { return c.Ping(ctx).Err() }, "PING after "+b.name+" and Heal")
	}
	s.Kill()
	if err := c.Ping(ctx).Err(); err == nil {
		t.Error("PING answered though the target is down")
	}
	s.Start()
	testenv.Eventually(t, time.Minute, func() error { return c.Ping(ctx).Err() }, "PING after the target came back")
}

// echo serves one address on which everything that is sent comes back.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn) // ends when the proxy closes its side
				_ = conn.Close()
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func TestProxyKeepsTheBytes(t *testing.T) {
	t.Parallel()
	p := testenv.NewProxy(t, echo(t))
	conn := dial(t, p.Addr())
	sent := make([]byte, 8<<20)
	if _, err := rand.Read(sent); err != nil {
		t.Fatal(err)
	}
	half := len(sent) / 2
	writing := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		writing <- err
	}()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, got[:half]); err != nil {
		t.Fatal(err)
	}
	p.Blackhole()
	p.Delay(20 * time.Millisecond)
	p.Heal()
	p.Delay(10 * time.Millisecond)
	if _, err := io.ReadFull(conn, got[half:]); err != nil {
		t.Fatal(err)
	}
	if err := <-writing; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, sent) {
		t.Error("the bytes that came back differ from those sent")
	}
}

func TestProxyBlackholeDeliversAfterHeal(t *testing.T) {
	t.Parallel()
	p := testenv.NewProxy(t, echo(t))
	conn := dial(t, p.Addr())
	p.Blackhole()
	late := dial(t, p.Addr())
	for _, c := range []net.Conn{conn, late} {
		if _, err := c.Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 5)
	if n, err := conn.Read(buf); err == nil {
		t.Fatalf("read %q through a black hole", buf[:n])
	}
	p.Heal()
	for _, c := range []net.Conn{conn, late} {
		if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "hello" {
			t.Errorf("read %q, %v after Heal; want hello", buf, err)
		}
	}
}

func TestProxyDropClosesConnectionsOnly(t *testing.T) {
	t.Parallel()
	p := testenv.NewProxy(t, echo(t))
	conn := dial(t, p.Addr())
	buf := make([]byte, 5)
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, buf); err != nil {
		t.Fatal(err)
	}
	p.Drop()
	if n, err := conn.Read(buf); err == nil {
		t.Errorf("read %q from a dropped connection", buf[:n])
	}
	again := dial(t, p.Addr())
	if _, err := again.Write([]byte("again")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(again, buf); err != nil || string(buf) != "again" {
		t.Errorf("read %q, %v on a new connection; want again", buf, err)
	}
}
