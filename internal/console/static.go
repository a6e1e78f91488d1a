package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

// staticFiles are the style, the script and the icon. Their addresses hold a hash of their content, so that browsers
// may keep them for ever.
type staticFiles struct {
	paths map[string]string // of each file, by its name
	files map[string][]byte // by path
}

func newStaticFiles() (*staticFiles, error) {
	s := &staticFiles{paths: map[string]string{}, files: map[string][]byte{}}
	entries, err := static.ReadDir("static")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := static.ReadFile("static/" + e.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		ext := path.Ext(e.Name())
		at := fmt.Sprintf("/static/%s.%s%s", strings.TrimSuffix(e.Name(), ext), hex.EncodeToString(sum[:6]), ext)
		s.paths[e.Name()], s.files[at] = at, data
	}
	return s, nil
}

// path returns the address of a file.
func (s *staticFiles) path(name string) (string, error) {
	at, ok := s.paths[name]
	if !ok {
		return "", fmt.Errorf("no static file %s", name)
	}
	return at, nil
}

// has reports whether there is a file at an address.
func (s *staticFiles) has(at string) bool {
	_, ok := s.files[at]
	return ok
}

func (s *staticFiles) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, ok := s.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(r.URL.Path)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}
