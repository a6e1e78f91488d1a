package console

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"
)

const (
	// liveEvery is the interval of a page's updates.
	liveEvery = time.Second
	// mostStreams limits the pages that are kept fresh at the same time. Others stay as loaded.
	mostStreams = 64
	// streamFor is the duration of one stream. Then the browser opens another stream, with the password.
	streamFor = 15 * time.Minute
	// streamWrite bounds one write.
	streamWrite = 5 * time.Second
)

// part is a part of a page: a template and its view.
type part struct {
	template string
	view     any
}

// renderParts renders parts of a page, by their names there.
func (rd *renderer) renderParts(page string, parts map[string]part) []byte {
	out := map[string]string{}
	for name, p := range parts {
		var b bytes.Buffer
		if err := rd.pages.byName[page].ExecuteTemplate(&b, p.template, p.view); err != nil {
			rd.log.Error("console: a part of a page cannot be rendered", "page", page, "part", name, "err", err)
			continue
		}
		out[name] = strings.TrimSpace(b.String())
	}
	data, _ := json.Marshal(out) // a map of texts never fails
	return data
}

// streams keep pages fresh in browsers.
type streams struct {
	places chan struct{} // holds one for each open stream
	closed chan struct{} // ends them
}

// send calls next once a second and sends its data if they are new. It ends once next is done, the browser leaves or
// timerd stops.
func (s *streams) send(w http.ResponseWriter, r *http.Request, next func() (data []byte, last bool)) {
	select {
	case s.places <- struct{}{}:
		defer func() { <-s.places }()
	default:
		w.WriteHeader(http.StatusNoContent) // tells the browser not to ask again
		return
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // nothing more is read; the write deadline finds dead clients
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	tick := time.NewTicker(liveEvery)
	defer tick.Stop()
	end := time.NewTimer(streamFor)
	defer end.Stop()
	var before []byte
	for quiet := 0; ; quiet++ {
		data, last := next()
		_ = control.SetWriteDeadline(time.Now().Add(streamWrite))
		var err error
		switch {
		case !bytes.Equal(data, before):
			_, err = w.Write(append(append([]byte("data: "), data...), "\n\n"...))
			before, quiet = data, 0
		case quiet%15 == 14:
			_, err = w.Write([]byte(": nothing new\n\n"))
		}
		if err == nil && last {
			_, err = w.Write([]byte("event: end\ndata: {}\n\n"))
		}
		if err == nil {
			err = control.Flush()
		}
		if err != nil || last {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		case <-s.closed:
			return
		}
	}
}
