package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/timerd-io/timerd/internal/config"
)

// user is the user name that belongs to the password.
const user = "timerd"

// Limits that slow guessing: the first wrong passwords of an address are answered at once. After that one password a
// second is checked, and few requests may wait for their check. No address waits for another. A browser that has signed
// in before has a place of its own, so guessing from the same address, or behind the same proxy, does not keep it out.
const (
	freeGuesses   = 5
	guessEvery    = time.Second
	maxGuessQueue = 4
	maxGuessers   = 4096 // remembered addresses
	maxQueued     = 64   // waiting requests, of all addresses
	cookieName    = "timerd_known"
	cookieBytes   = 16
	// cookieFor is the time for which a browser is known. After half of that time, the browser gets another cookie.
	cookieFor = 30 * 24 * time.Hour
	// cookieKey is the purpose of the key that signs cookies.
	cookieKey = "timerd console: a browser that has signed in"
)

// login asks for the password.
type login struct {
	password config.Password
	log      *slog.Logger
	proxies  proxies
	secret   []byte // signs cookies; the same for the same password

	mu       sync.Mutex
	guessers map[string]*guesser
	queued   int
}

// guesser is a source of recent passwords. It regains its free guesses with time.
type guesser struct {
	next   time.Time // time of the next check, if in the future
	queued int
}

func newLogin(settings config.Console, log *slog.Logger) *login {
	password := settings.Password
	return &login{password: password, log: log, proxies: settings.Proxies, secret: password.Key(cookieKey),
		guessers: map[string]*guesser{}}
}

// check returns nil if the request has the password, and otherwise the answer.
func (l *login) check(w http.ResponseWriter, r *http.Request) *fault {
	name, given, ok := r.BasicAuth()
	if !ok {
		return askForPassword(w, "The console asks for a user and a password.")
	}
	from, known := l.source(r, time.Now())
	wait, ok := l.turn(from, time.Now())
	if !ok {
		w.Header().Set("Retry-After", "5")
		return &fault{Status: http.StatusTooManyRequests, Title: "Too many wrong passwords",
			Detail: "Many wrong passwords came from this address, so it may try one a second.",
			Fix:    "Try again in a few seconds."}
	}
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-r.Context().Done():
		}
		l.leave(from)
	}
	right := l.password.Matches(given)
	if subtle.ConstantTimeCompare([]byte(name), []byte(user)) != 1 || !right {
		l.log.Warn("console: wrong user or password", "from", from)
		return askForPassword(w, "The user or the password is wrong.")
	}
	l.succeeded(from)
	if !known {
		l.remember(w)
	}
	return nil
}

func askForPassword(w http.ResponseWriter, why string) *fault {
	w.Header().Set("WWW-Authenticate", `Basic realm="timerd", charset="UTF-8"`)
	return &fault{Status: http.StatusUnauthorized, Title: "Sign in", Detail: why,
		Fix: "The user is " + user +
			", the password is the value of TIMERD_CONSOLE_PASSWORD. Reload the page to be asked again."}
}

// turn takes the next place of a source. It returns the wait for it, after which the caller calls leave. It returns
// false if too many wait already.
func (l *login) turn(from string, now time.Time) (wait time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.guessers[from]
	if g == nil {
		l.makeRoom(now)
		g = &guesser{}
		l.guessers[from] = g
	}
	if g.next.Before(now.Add(-freeGuesses * guessEvery)) {
		g.next = now.Add(-freeGuesses * guessEvery)
	}
	wait = g.next.Add(guessEvery).Sub(now)
	if wait > 0 {
		if g.queued >= maxGuessQueue || l.queued >= maxQueued {
			return 0, false
		}
		g.queued++
		l.queued++
	}
	g.next = g.next.Add(guessEvery)
	return max(wait, 0), true
}

// leave ends a wait.
func (l *login) leave(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.guessers[from]; g != nil {
		g.queued--
	}
	l.queued--
}

// succeeded gives back the place of a right password.
func (l *login) succeeded(from string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.guessers[from]; g != nil {
		g.next = g.next.Add(-guessEvery)
	}
}

// makeRoom forgets sources that have regained all guesses; if there are none, some for which nobody waits.
func (l *login) makeRoom(now time.Time) {
	if len(l.guessers) < maxGuessers {
		return
	}
	for from, g := range l.guessers {
		if g.queued == 0 && g.next.Before(now.Add(-freeGuesses*guessEvery)) {
			delete(l.guessers, from)
		}
	}
	for from, g := range l.guessers {
		if len(l.guessers) < maxGuessers {
			return
		}
		if g.queued == 0 {
			delete(l.guessers, from)
		}
	}
}

// source returns the origin of a password, a browser that has signed in before or an address, and whether that browser
// needs no new cookie. An IPv6 address counts as its network of 64 bits, because one machine may have all of it.
func (l *login) source(r *http.Request, now time.Time) (from string, known bool) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		if id, until, ok := l.verify(cookie.Value); ok && now.Before(until) {
			return "known " + id, until.Sub(now) > cookieFor/2
		}
	}
	from = l.proxies.client(r)
	if addr, err := netip.ParseAddr(from); err == nil && addr.Is6() {
		if network, err := addr.Prefix(64); err == nil {
			return network.String(), false
		}
	}
	return from, false
}

// remember gives a browser the cookie by which it is recognised. The cookie does not replace the password.
func (l *login) remember(w http.ResponseWriter) {
	said := rand.Text()[:cookieBytes] + "." + strconv.FormatInt(time.Now().Add(cookieFor).Unix(), 10)
	http.SetCookie(w, &http.Cookie{ //nolint:gosec // the console itself speaks no TLS; a proxy may
		Name: cookieName, Value: said + "." + l.sign(said), Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode,
		MaxAge:   int(cookieFor.Seconds()),
	})
}

func (l *login) sign(said string) string {
	mac := hmac.New(sha256.New, l.secret)
	mac.Write([]byte(said))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// verify returns the browser that a cookie identifies, and the time at which the cookie expires.
func (l *login) verify(value string) (id string, until time.Time, ok bool) {
	at := strings.LastIndexByte(value, '.')
	if at < 0 || !hmac.Equal([]byte(value[at+1:]), []byte(l.sign(value[:at]))) {
		return "", time.Time{}, false
	}
	id, seconds, _ := strings.Cut(value[:at], ".")
	unix, err := strconv.ParseInt(seconds, 10, 64)
	return id, time.Unix(unix, 0), err == nil && len(id) == cookieBytes
}

// who returns the sender of a request, for the log of actions.
func who(settings config.Console, r *http.Request) string {
	name := "anybody"
	if settings.Password.IsSet() {
		name = user
	}
	return name + "@" + proxies(settings.Proxies).client(r)
}
