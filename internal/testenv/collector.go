package testenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stallTime is after how long without a message a collector looks whether the stream has some for it.
const stallTime = 10 * time.Second

// Message is one message of a stream.
type Message struct {
	Subject  string
	Header   nats.Header
	Data     []byte
	Seq      uint64    // its place in the stream
	Time     time.Time // when the stream stored it, by the NATS server's clock
	Received time.Time // when the collector saw it
}

// ID returns the message's Nats-Msg-Id header, "" without one.
func (m Message) ID() string { return m.Header.Get(nats.MsgIdHdr) }

// Collector keeps every message that a stream stores, each once, in the stream's order. It goes on through restarts of
// the NATS server. All, Len and DuplicateIDs may be called from any goroutine.
type Collector struct {
	t      testing.TB
	what   string
	signal chan struct{} // holds one token when messages came in

	js        jetstream.JetStream
	stream    string
	subjects  []string
	consuming jetstream.ConsumeContext // of the test's goroutine

	mu   sync.Mutex
	all  []Message
	last uint64 // highest Seq in all
}

// Collect collects the messages of a stream, existing ones too, until t ends. Given subjects, perhaps with wildcards,
// it collects only theirs. It waits until the stream exists.
func Collect(t testing.TB, js jetstream.JetStream, stream string, subjects ...string) *Collector {
	t.Helper()
	c := &Collector{
		t: t, what: strings.Join(append([]string{stream}, subjects...), " "), signal: make(chan struct{}, 1),
		js: js, stream: stream, subjects: subjects,
	}
	Eventually(t, startTimeout, c.consume, "testenv: consuming "+c.what)
	t.Cleanup(c.stop)
	return c
}

// consumeTimeout bounds one try to consume: a cluster without a leader does not answer.
const consumeTimeout = 5 * time.Second

// consume begins to consume after the messages collected so far.
func (c *Collector) consume() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), consumeTimeout)
	defer cancel()
	c.mu.Lock()
	conf := jetstream.OrderedConsumerConfig{
		FilterSubjects: c.subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: c.last + 1,
	}
	c.mu.Unlock()
	consumer, err := c.js.OrderedConsumer(ctx, c.stream, conf)
	if err != nil {
		return err
	}
	c.consuming, err = consumer.Consume(c.receive)
	return err
}

func (c *Collector) stop() {
	c.consuming.Stop()
	<-c.consuming.Closed()
}

// renew starts another consumer if the stream has more than was collected: after a restart of the server an ordered
// consumer may stand still.
func (c *Collector) renew() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), time.Second)
	defer cancel()
	stream, err := c.js.Stream(ctx, c.stream)
	c.mu.Lock()
	behind := err == nil && stream.CachedInfo().State.LastSeq > c.last
	c.mu.Unlock()
	if !behind {
		return
	}
	c.stop()
	Eventually(c.t, startTimeout, c.consume, "testenv: consuming "+c.what+" again")
}

// Wait waits until the collector has n messages and returns them. Fewer than n at the end of timeout, or more than n at
// any time, end the test. It returns as soon as there are n: Stays checks that no more come.
func (c *Collector) Wait(n int, timeout time.Duration) []Message {
	c.t.Helper()
	return c.WaitFunc(timeout, func(all []Message) error {
		switch {
		case len(all) > n:
			c.t.Fatalf("%s: %d messages, want %d; the surplus:\n%s", c.what, len(all), n, list(all[n:]))
		case len(all) < n:
			return fmt.Errorf("%d messages, want %d", len(all), n)
		}
		return nil
	})
}

// WaitFunc waits until done returns nil for the messages collected so far, and returns them. done is called at once and
// after each arrival. Its last error ends the test when timeout is over.
func (c *Collector) WaitFunc(timeout time.Duration, done func(all []Message) error) []Message {
	c.t.Helper()
	expired, stalled := time.NewTimer(timeout), time.NewTicker(stallTime)
	defer expired.Stop()
	defer stalled.Stop()
	for {
		all := c.All()
		err := done(all)
		if err == nil {
			return all
		}
		select {
		case <-c.signal:
			stalled.Reset(stallTime)
		case <-stalled.C:
			c.renew()
		case <-expired.C:
			all := c.All()
			if err = done(all); err == nil {
				return all
			}
			c.t.Fatalf("%s: not within %v: %v; the last of them:\n%s", c.what, timeout, err, list(all))
		}
	}
}

// Stays watches for the length of window and ends the test as soon as the collector has other than n messages. Use it
// with a time within which a surplus must show.
func (c *Collector) Stays(n int, window time.Duration) {
	c.t.Helper()
	over := time.NewTimer(window)
	defer over.Stop()
	for {
		all := c.All()
		if len(all) != n {
			c.t.Fatalf("%s: %d messages, want %d to stay; the last of them:\n%s", c.what, len(all), n, list(all))
		}
		select {
		case <-c.signal:
		case <-over.C:
			return
		}
	}
}

// All returns the messages collected so far.
func (c *Collector) All() []Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// Len returns how many messages were collected so far.
func (c *Collector) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.all)
}

// DuplicateIDs returns the Nats-Msg-Ids that the stream stored more than once, sorted. Messages without one do not
// count.
func (c *Collector) DuplicateIDs() []string {
	times := make(map[string]int)
	for _, m := range c.All() {
		if id := m.ID(); id != "" {
			times[id]++
		}
	}
	var dup []string
	for id, n := range times {
		if n > 1 {
			dup = append(dup, id)
		}
	}
	slices.Sort(dup)
	return dup
}

func (c *Collector) receive(msg jetstream.Msg) {
	m, err := newMessage(msg)
	if err != nil {
		c.t.Errorf("testenv: collecting %s: %v", c.what, err)
		return
	}
	c.mu.Lock()
	// A consumer created again after an outage may repeat deliveries.
	if m.Seq > c.last {
		c.all = append(c.all, m)
		c.last = m.Seq
	}
	c.mu.Unlock()
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

func newMessage(msg jetstream.Msg) (Message, error) {
	meta, err := msg.Metadata()
	if err != nil {
		return Message{}, errors.Join(fmt.Errorf("subject %q", msg.Subject()), err)
	}
	return Message{
		Subject:  msg.Subject(),
		Header:   msg.Headers(),
		Data:     msg.Data(),
		Seq:      meta.Sequence.Stream,
		Time:     meta.Timestamp,
		Received: time.Now(),
	}, nil
}

// list describes the last few messages.
func list(all []Message) string {
	const most = 10
	var b strings.Builder
	for _, m := range all[max(0, len(all)-most):] {
		fmt.Fprintf(&b, "  %d %s id=%q %.200q\n", m.Seq, m.Subject, m.ID(), m.Data)
	}
	return b.String()
}
