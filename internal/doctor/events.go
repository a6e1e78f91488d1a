package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/listener"
)

// eventsTimeout bounds the wait for a probe's events.
const eventsTimeout = 2 * time.Second

// events checks that keyspace events flow: by the setting if it can be read, or else by a trial.
func (d *Redis) events(ctx context.Context, r *diag.Findings) {
	if !d.Events {
		r.OK("not used: TIMERD_KEYSPACE_EVENTS=off; plain keys are adopted by audit")
		return
	}
	value, known := d.settings["notify-keyspace-events"]
	flags := listener.AddFlags(value)
	fix := func(with string) string {
		return fmt.Sprintf("set it here and in redis.conf, or in the parameter group of a managed Redis%s: redis-cli "+
			"CONFIG SET notify-keyspace-events %s", with, diag.Word(flags))
	}
	const orOff = "; where that is not possible, set TIMERD_KEYSPACE_EVENTS=off"
	if !known {
		own := fix(", with the flags that others of this Redis need besides" + orOff)
		if redis.HasErrorPrefix(d.unread, "unknown command") {
			own = "set notify-keyspace-events to " + flags +
				" by the service's own setting, see Managed Redis in docs/operations.md" + orOff
		}
		d.tryEvents(ctx, r, own)
		return
	}
	missing := listener.MissingFlags(value)
	switch {
	case missing == "":
		r.OK("notify-keyspace-events is %q", value)
	case d.maySet(ctx):
		r.Warn(fix(""), "notify-keyspace-events is %q and lacks %s: timerd, which may, switches them on at its "+
			"start, and again after a restart of Redis", value, missing)
	case missing == "h":
		r.Warn(fix(""), "notify-keyspace-events is %q and lacks h: later HSETs on a hash timer are seen by audit only",
			value)
	default:
		r.Fail(fix(orOff), "notify-keyspace-events is %q and lacks %s, and timerd may not switch them on: plain keys "+
			"are adopted by audit only", value, missing)
	}
}

// maySet reports whether CONFIG SET is allowed. It tries to set a setting that does not exist.
func (d *Redis) maySet(ctx context.Context) bool {
	err := d.rdb.ConfigSet(ctx, "timerd-doctor", "").Err()
	if err == nil {
		return true
	}
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "unknown option") || strings.Contains(text, "unsupported config parameter")
}

// tryEvents writes a probe and checks which of its events arrive.
func (d *Redis) tryEvents(ctx context.Context, r *diag.Findings, fix string) {
	why := "CONFIG GET does not show the setting"
	switch {
	case redis.HasErrorPrefix(d.unread, "unknown command"):
		why = "the server has no CONFIG GET"
	case d.unread != nil:
		why = "CONFIG GET: " + d.unread.Error()
	}
	missing, err := d.missingEvents(ctx)
	switch {
	case err != nil:
		r.Fail("grant the rights in the line redis rights", "%s; and a trial fails: %v", why, err)
	case len(missing) > 0: // without CONFIG GET timerd sets no flags: it might remove others'
		r.Fail(fix, "%s; and a trial brought no event for %s", why, strings.Join(missing, ", "))
	default:
		r.OK("set, expire and expired arrive; the rest is unknown: %s", why)
	}
}

// missingEvents returns the events of a probe that did not arrive in time.
func (d *Redis) missingEvents(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, eventsTimeout)
	defer cancel()
	probe := keys.CanaryKey(d.node.AnyPartition(), "doctor-"+strings.ToLower(rand.Text()), 0)
	channels := []string{keys.KeyspacePrefix(d.DB) + probe, keys.ExpiredChannel(d.DB)}
	sub := d.rdb.Subscribe(ctx, channels...)
	defer func() { _ = sub.Close() }()
	for range channels {
		if _, err := sub.Receive(ctx); err != nil {
			return nil, fmt.Errorf("subscribe: %w", err)
		}
	}
	const ttl = 50 * time.Millisecond
	if err := d.rdb.Set(ctx, probe, "", ttl).Err(); err != nil {
		return nil, fmt.Errorf("set a probe: %w", err)
	}
	// Touching an expired key makes Redis send its event.
	touched := time.AfterFunc(2*ttl, func() { d.rdb.Exists(ctx, probe) })
	defer touched.Stop()

	missing := map[string]bool{"set ($)": true, "expire (g)": true, "expired (x)": true}
	for len(missing) > 0 {
		message, err := sub.Receive(ctx)
		var timeout net.Error
		if ctx.Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
			break
		}
		if err != nil {
			return nil, err
		}
		m, ok := message.(*redis.Message)
		switch {
		case !ok:
		case m.Channel == channels[1] && m.Payload == probe:
			delete(missing, "expired (x)")
		case m.Payload == "set":
			delete(missing, "set ($)")
		case m.Payload == "expire":
			delete(missing, "expire (g)")
		}
	}
	return slices.Sorted(maps.Keys(missing)), nil
}
