package listener

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

const (
	// MaxFollowed limits the followed apps outside the namespaces. Each needs a pattern, which Redis compares with
	// every event of every client, at some 50 ns each.
	MaxFollowed = 16
	// maxKnown limits the remembered apps. Further ones count as schedule.OtherApps.
	maxKnown = 20_000
)

// Directory knows the parts of the schedule on the server.
type Directory interface {
	Apps(ctx context.Context) ([]string, error)
	AnyPartition() keys.Partition // a partition whose keys the server takes
	ClaimedChannel() string       // the channel of claim messages; it changes with a master's slots
}

// apps knows the apps outside the namespaces in which timers were set. It follows the keys of up to MaxFollowed apps,
// those known for longest. From the others it receives expired events only, which need no pattern. Its methods may be
// called concurrently.
type apps struct {
	node       Directory
	db         int
	namespaces keys.Namespaces
	sub        *redis.PubSub
	coverage   Coverage
	reported   *reported
	log        *slog.Logger

	mu       sync.Mutex
	known    map[string]*app
	followed int
	asked    []request // unanswered requests; Redis answers in this order
	refused  bool      // Redis refused a pattern in this session
	read     bool      // the known apps were read in this session
	begun    bool      // known has the apps followed in the last session, or all apps
}

type app struct {
	followed, refused bool
	announced         bool // since the last reading of the known apps
}

// request is a request to begin or end the subscription to an app's keys.
type request struct{ pattern, app string }

// pattern returns the pattern of an app's keys, and whether a namespace covers the app, so that no pattern is needed.
func (a *apps) pattern(name string) (pattern string, covered bool) {
	n := keys.Namespace{App: name}
	return keys.KeyspacePattern(a.db, n), a.namespaces.Cover(n)
}

// announce notes the first timer of an app.
func (a *apps) announce(ctx context.Context, name string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.add(ctx, name, true); err != nil {
		return err
	}
	a.report()
	return nil
}

// begin follows the apps of the previous session, so that changes of their keys are noticed from here on. The first
// session has to read the apps.
func (a *apps) begin(ctx context.Context) error {
	if a.reported.followed == nil {
		return a.refresh(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range a.reported.followed {
		if err := a.add(ctx, name, false); err != nil {
			return err
		}
	}
	a.begun = true
	a.report()
	return nil
}

// refresh reads the known apps, in hundreds of calls if a master of a cluster has them. It stops following forgotten
// apps, and follows others instead.
func (a *apps) refresh(ctx context.Context) error {
	a.mu.Lock()
	for _, known := range a.known {
		known.announced = false
	}
	a.mu.Unlock()
	names, err := a.node.Apps(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.read, a.begun = true, true
	there := make(map[string]bool, len(names))
	for _, name := range names {
		there[name] = true
	}
	for name, known := range a.known {
		if there[name] || known.announced { // during the reading
			continue
		}
		delete(a.known, name)
		if known.followed {
			if err := a.unfollow(ctx, name); err != nil {
				return err
			}
		}
	}
	for _, name := range names {
		if err := a.add(ctx, name, false); err != nil {
			return err
		}
	}
	a.report()
	return nil
}

// add adds an app, and follows it if there is room. a.mu is held.
func (a *apps) add(ctx context.Context, name string, announced bool) error {
	pattern, covered := a.pattern(name)
	if covered {
		return nil
	}
	known := a.known[name]
	if known == nil {
		if len(a.known) >= maxKnown {
			name = schedule.OtherApps
		}
		known = &app{}
		a.known[name] = known
	}
	known.announced = known.announced || announced
	if name == schedule.OtherApps || known.followed || known.refused || a.followed == MaxFollowed {
		return nil
	}
	known.followed = true
	a.followed++
	a.asked = append(a.asked, request{pattern, name})
	if err := a.sub.PSubscribe(ctx, pattern); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return nil
}

// unfollow ends the subscription to an app's keys. a.mu is held.
func (a *apps) unfollow(ctx context.Context, name string) error {
	pattern, _ := a.pattern(name)
	a.followed--
	a.asked = append(a.asked, request{pattern, name})
	if err := a.sub.PUnsubscribe(ctx, pattern); err != nil {
		return fmt.Errorf("unsubscribe: %w", err)
	}
	return nil
}

// confirm takes a confirmation of the server. It returns false if no request of apps awaits it.
func (a *apps) confirm(m *redis.Subscription) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.asked) == 0 || a.asked[0].pattern != m.Channel {
		return false
	}
	a.asked = a.asked[1:]
	return true
}

// refuse notes that the user may not follow the app of the oldest request. Another app may take its place. It returns
// false if there is no request.
func (a *apps) refuse(err error) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.asked) == 0 {
		return false
	}
	asked := a.asked[0]
	a.asked = a.asked[1:]
	if known := a.known[asked.app]; known != nil && known.followed {
		known.followed, known.refused = false, true
		a.followed--
	}
	if !a.refused {
		a.refused = true
		a.log.Warn(
			"cannot follow the keys of timers outside the namespaces, so DEL and EXPIRE on them go unnoticed until an"+
				" audit; allow the user this channel, and the channels of the other apps",
			"err", err, "channel", asked.pattern)
	}
	a.report()
	return true
}

// report stores the followed apps. It also reports to Coverage, after a change, whether some apps are not followed.
// a.mu is held. Before the end of begin the session knows only some apps, so report does nothing: the next session
// begins with the same apps.
func (a *apps) report() {
	if !a.begun {
		return
	}
	a.reported.followed = make([]string, 0, a.followed)
	for name, known := range a.known {
		if known.followed {
			a.reported.followed = append(a.reported.followed, name)
		}
	}
	beyond := len(a.known) > a.followed || !a.read && a.reported.beyond // further apps are not read yet
	if beyond == a.reported.beyond {
		return
	}
	a.reported.beyond = beyond
	if beyond && !a.refused {
		a.log.Warn(
			"timers are set in more apps outside the namespaces than are followed, so DEL and EXPIRE on their keys go"+
				" unnoticed until an audit; name the apps that matter in TIMERD_NAMESPACES",
			"apps", len(a.known), "followed", a.followed)
	}
	a.coverage.SetBeyond(beyond)
}

// takes reports whether a hint of a key outside the namespaces may be about a timer in the schedule. Before the known
// apps are read, every expired event may be, because other timerds already rely on this session.
func (a *apps) takes(name string, kind schedule.HintKind) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.known[name]; known != nil {
		return known.followed || kind == schedule.Expired
	}
	return (!a.read || a.known[schedule.OtherApps] != nil) && kind == schedule.Expired
}
