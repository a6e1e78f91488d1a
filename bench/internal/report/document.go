package report

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/timerd-io/timerd/bench/internal/result"
)

// The lines of a document before and after its generated part.
const (
	beginMarker = "<!-- results:begin -->"
	endMarker   = "<!-- results:end -->"
)

// ErrNoMarkers means that a document lacks these lines.
var ErrNoMarkers = errors.New("want one line " + beginMarker + " and one line " + endMarker + " after it")

// Replace returns a document with other results. All text outside the generated part stays as it is.
func Replace(document, results []byte) ([]byte, error) {
	before, rest, ok1 := bytes.Cut(document, []byte(beginMarker+"\n"))
	_, after, ok2 := bytes.Cut(rest, []byte(endMarker+"\n"))
	if !ok1 || !ok2 || bytes.Contains(after, []byte(beginMarker)) {
		return nil, ErrNoMarkers
	}
	return bytes.Join([][]byte{before, []byte(beginMarker + "\n\n"), bytes.TrimSpace(results),
		[]byte("\n\n" + endMarker + "\n"), after}, nil), nil
}

// Update writes the tables of a run into a document, and the plots into a directory.
func Update(run *result.Run, document, plots string) error {
	text, err := os.ReadFile(filepath.Clean(document))
	if err != nil {
		return err
	}
	var results bytes.Buffer
	if err := Tables(&results, run); err != nil {
		return err
	}
	images, err := WritePlots(run, plots, document)
	if err != nil {
		return err
	}
	results.WriteString(images)
	text, err = Replace(text, results.Bytes())
	if err != nil {
		return fmt.Errorf("%s: %w", document, err)
	}
	return os.WriteFile(document, text, 0o644) //nolint:gosec // a document
}
