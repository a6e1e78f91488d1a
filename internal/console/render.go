package console

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/timerd-io/timerd/event"
)

//go:embed templates
var templateFiles embed.FS

// page is a page's content: its view is rendered by the template, or as JSON.
type page struct {
	Template string // its name, without .html
	Title    string
	Nav      string // the path of its part of the console
	Status   int    // of the answer; 0: 200
	View     any
	Trouble  *fault // why View is empty because a server is away; nil otherwise
	Reload   int    // seconds until a browser without the script reloads; 0: never
}

// pageFunc reads a page. Its error is a *fault, or a server's.
type pageFunc func(*http.Request) (*page, error)

// frame is a page with its surroundings.
type frame struct {
	*page
	Actions bool
	State   *summary
	Notices []notice
	Query   string // in the search field
}

// templates are the parsed pages, by name.
type templates struct{ byName map[string]*template.Template }

func newTemplates(files *staticFiles) (*templates, error) {
	functions := template.FuncMap{
		"static": files.path, "grouped": groupedAny, "counted": countedAny, "about": about, "ms": ms,
		"perSecond": perSecond, "share": shareText,
		"plain": plain, "line": func(s string) []Piece { return pieces(s, false) },
		"lines":  func(s string) []Piece { return pieces(s, true) },
		"moment": func(at, now time.Time) Moment { return Moment{at, now} }, "ref": encodeRef, "address": address,
		"dict": dict,
	}
	base, err := template.New("base").Funcs(functions).ParseFS(templateFiles, "templates/base.html",
		"templates/parts.html")
	if err != nil {
		return nil, err
	}
	t := &templates{map[string]*template.Template{}}
	all, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		return nil, err
	}
	for _, file := range all {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "base" || name == "parts" {
			continue
		}
		one, err := template.Must(base.Clone()).ParseFS(templateFiles, file)
		if err != nil {
			return nil, err
		}
		t.byName[name] = one
	}
	return t, nil
}

// groupedAny is grouped for any whole number, or a pointer to one.
func groupedAny(v reflect.Value) string { return grouped(whole(v)) }

// countedAny is counted for any whole number.
func countedAny(v reflect.Value, one, many string) string { return counted(whole(v), one, many) }

func whole(v reflect.Value) int64 {
	v = reflect.Indirect(v)
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return int64(v.Uint())
	}
	return 0
}

// dict makes a map of alternating names and values, for a template with several inputs.
func dict(pairs ...any) (map[string]any, error) {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		name, ok := pairs[i].(string)
		if !ok {
			return nil, fmt.Errorf("dict: %v is no name", pairs[i])
		}
		m[name] = pairs[i+1]
	}
	return m, nil
}

// renderer writes pages and faults.
type renderer struct {
	pages   *templates
	actions bool // there are some
	state   *cache[*summary]
	log     *slog.Logger
}

// html renders a page for people.
func (rd *renderer) html(read pageFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, err := read(r)
		if err != nil {
			rd.fail(w, r, asFault(err))
			return
		}
		rd.writePage(w, r, p)
	}
}

// asJSON renders a page for programs.
func asJSON(read pageFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		p, err := read(r)
		if err == nil && p.Trouble != nil {
			err = p.Trouble
		}
		if err != nil {
			writeProblem(w, asFault(err))
			return
		}
		status := http.StatusOK
		if p.Status != 0 {
			status = p.Status
		}
		writeJSON(w, status, "application/json", p.View)
	}
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // the client is gone
}

// writePage writes a page with its frame.
func (rd *renderer) writePage(w http.ResponseWriter, r *http.Request, p *page) {
	f := &frame{page: p, Actions: rd.actions, State: rd.state.get(r.Context()),
		Query: event.ClipText(typed(r.URL.Query(), "q"))}
	if p.Nav == "/timers" {
		f.Query = "" // the page's own field shows it
	}
	f.Notices = noticesOf(f.State, p.Nav == "/")
	var b bytes.Buffer
	if err := rd.pages.byName[p.Template].ExecuteTemplate(&b, "base", f); err != nil {
		rd.log.Error("console: a page cannot be rendered", "page", p.Template, "err", err)
		http.Error(w, "The page cannot be shown because of an error in timerd: see its log.",
			http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Status != 0 {
		w.WriteHeader(p.Status)
	}
	_, _ = b.WriteTo(w) // the client is gone
}

// isAPI reports whether the client is a program.
func isAPI(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, apiPath+"/") }

// fail answers with an error.
func (rd *renderer) fail(w http.ResponseWriter, r *http.Request, f *fault) {
	if isAPI(r) {
		writeProblem(w, f)
		return
	}
	rd.writePage(w, r, &page{Template: "fault", Title: f.Title, Status: f.Status, View: f})
}

// failPlain is like fail, but reads nothing. It is for clients without the password, and for answers in a hurry.
func (rd *renderer) failPlain(w http.ResponseWriter, r *http.Request, f *fault) {
	if isAPI(r) {
		writeProblem(w, f)
		return
	}
	var b bytes.Buffer
	if err := rd.pages.byName["plain"].ExecuteTemplate(&b, "plain", f); err != nil {
		rd.log.Error("console: a page cannot be rendered", "page", "plain", "err", err)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(f.Status)
	_, _ = b.WriteTo(w)
}

// writeProblem writes a fault in the form of RFC 9457.
func writeProblem(w http.ResponseWriter, f *fault) {
	writeJSON(w, f.Status, "application/problem+json", f)
}

// apiPath begins the addresses of the JSON API.
const apiPath = "/api/v1"
