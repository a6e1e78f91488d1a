package console

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/timerd-io/timerd/internal/config"
)

const (
	// maxBody limits a form, in bytes: a page of the longest keys.
	maxBody = 1 << 20
	// maxRequests limits the requests that read at the same time: a few more than the connections to Redis.
	maxRequests = 8
	// queueFor limits a request's wait for its turn.
	queueFor = 5 * time.Second
	// maxWaiting limits all requests at a time: sending a form, waiting, reading or being answered.
	maxWaiting = 64
	// pageTimeout bounds the reading for a page.
	pageTimeout = 10 * time.Second
)

// contentPolicy lets a page load its own style, script and icon, contact no other site, and appear in no frame.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard decides which requests are answered at all.
type guard struct {
	hosts   []string // in lower case, beside the address itself; an entry may have a port
	login   *login   // nil: no password is asked for
	files   *staticFiles
	render  *renderer
	turns   chan struct{}
	waiting chan struct{}
}

func newGuard(settings config.Console, files *staticFiles, render *renderer) *guard {
	g := &guard{hosts: slices.Clone(settings.Hosts), files: files, render: render,
		turns: make(chan struct{}, maxRequests), waiting: make(chan struct{}, maxWaiting)}
	if host, _, err := net.SplitHostPort(settings.Addr); err == nil && host != "" {
		g.hosts = append(g.hosts, strings.ToLower(host))
	}
	if settings.Password.IsSet() {
		g.login = newLogin(settings, render.log)
	}
	return g
}

// protect puts all guards before a handler.
func (g *guard) protect(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.render.fail(w, r, &fault{Status: http.StatusForbidden, Title: "Not from another site",
			Detail: "The request came from a page of another site, and changed nothing.",
			Fix:    "Open the console itself and do it there. A proxy in front of it has to pass the Host header on."})
	}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setHeaders(w.Header())
		if !g.knowsHost(r) {
			g.render.failPlain(w, r, &fault{Status: http.StatusMisdirectedRequest,
				Title:  "Not the name of this console",
				Detail: "The console is not reached by the name " + clip(r.Host, 100) + ".",
				Fix:    "Add the name to TIMERD_CONSOLE_HOSTS, or use the address that timerd listens on."})
			return
		}
		if isForeignPart(r) {
			g.render.failPlain(w, r, &fault{Status: http.StatusForbidden, Title: "Not from another site",
				Detail: "A page of another site embeds this page.", Fix: "Open it in a tab of its own."})
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		if g.login != nil && !g.files.has(r.URL.Path) {
			if fault := g.login.check(w, r); fault != nil {
				g.render.failPlain(w, r, fault)
				return
			}
		}
		if !utf8.ValidString(r.URL.RawQuery) { // a redirect to the clean path would repeat it
			g.render.failPlain(w, r, badRequest("The query of the address is not UTF-8.",
				"Percent-encode it: /timers?q=%C3%BC."))
			return
		}
		cross.Handler(next).ServeHTTP(w, r)
	})
}

// isForeignPart reports whether a page of another site loads the request as a part, such as an image or by a script, as
// far as the browser's headers tell. That page cannot read the answer, but would make Redis work. A link to a page here
// is no part.
func isForeignPart(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") &&
		(r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document")
}

func setHeaders(h http.Header) {
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY") // for browsers without frame-ancestors
	// With no-referrer, a form would send Origin: null, and the console would take it for another site's.
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-store")
}

// knowsHost reports whether the Host of a request is a name of the console. A page of another site may make its own
// name point to the console (DNS rebinding); its requests are refused. If TIMERD_CONSOLE_ADDR means all addresses of
// the machine, the address of the connection counts as a name too.
func (g *guard) knowsHost(r *http.Request) bool {
	whole := strings.ToLower(r.Host)
	name := whole
	if host, _, err := net.SplitHostPort(whole); err == nil {
		name = host
	}
	name = strings.Trim(name, "[]")
	if name == "localhost" {
		return true
	}
	for _, host := range g.hosts {
		if host == whole || strings.Trim(host, "[]") == name {
			return true
		}
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	at, err := netip.ParseAddrPort(local.String())
	asked, err2 := netip.ParseAddr(name)
	return err == nil && err2 == nil && at.Addr().Unmap() == asked.Unmap()
}

// inTurn makes a request wait while many others are reading, so that Redis has time for firings however many pages are
// requested. A form that arrives slowly, and an answer that is read slowly, take no turn.
func (g *guard) inTurn(next http.HandlerFunc) http.HandlerFunc {
	busy := &fault{Status: http.StatusServiceUnavailable, Title: "Too many requests at once",
		Detail: "The console answers a few requests at a time, so that timers are not delayed.",
		Fix:    "Try again in a few seconds."}
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case g.waiting <- struct{}{}:
			defer func() { <-g.waiting }()
		default:
			w.Header().Set("Retry-After", "5")
			g.render.failPlain(w, r, busy)
			return
		}
		if r.Method == http.MethodPost {
			if _, err := readForm(r); err != nil {
				g.render.failPlain(w, r, asFault(err))
				return
			}
		}
		queue := time.NewTimer(queueFor)
		defer queue.Stop()
		select {
		case g.turns <- struct{}{}:
		case <-queue.C:
			w.Header().Set("Retry-After", "5")
			g.render.failPlain(w, r, busy)
			return
		case <-r.Context().Done():
			return
		}
		answer := &keptAnswer{ResponseWriter: w}
		func() {
			defer func() { <-g.turns }()
			ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
			defer cancel()
			next(answer, r.WithContext(ctx))
		}()
		answer.send()
	}
}

// keptAnswer is an answer that is sent once the turn is over, so that a slow reader takes no turn from others.
type keptAnswer struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (k *keptAnswer) WriteHeader(status int)               { k.status = status }
func (k *keptAnswer) Write(data []byte) (n int, err error) { return k.body.Write(data) }

func (k *keptAnswer) send() {
	if k.status != 0 {
		k.ResponseWriter.WriteHeader(k.status)
	}
	_, _ = k.body.WriteTo(k.ResponseWriter) // the client is gone
}

// limitConnections returns a listener with at most so many open connections.
func limitConnections(l net.Listener, most int) net.Listener {
	return &limitedListener{Listener: l, free: make(chan struct{}, most), done: make(chan struct{})}
}

type limitedListener struct {
	net.Listener
	free chan struct{} // holds one for each open connection
	done chan struct{}
	once sync.Once
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.free <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.free
		return nil, err
	}
	return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.free })}, nil
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}

// readForm reads a form that is not too large.
func readForm(r *http.Request) (url.Values, error) {
	if err := r.ParseForm(); err != nil {
		return nil, &fault{Status: http.StatusRequestEntityTooLarge, Title: "The form cannot be read",
			Detail: err.Error(), Fix: "Select fewer at a time, or all that match."}
	}
	return r.PostForm, nil
}
