// Report reads the output of `go test -json` and prints it like `go test`: a line a package, and failures in full. At
// the end it names the slowest tests and packages, and marks the ones that are too slow.
//
//	go test -json ./... | report
//
// Its exit code is 0 even if tests failed: go test reports that.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	// shown is the number of tests and packages named.
	shown = 10
	// slowTest and slowPackage are the times after which a test and a package are marked.
	slowTest    = 20 * time.Second
	slowPackage = 60 * time.Second
)

func main() {
	if err := report(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
}

// event is a line of `go test -json`, see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	Test        string // empty: of the package
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

// timed is the duration of a test or a package.
type timed struct {
	name string
	took time.Duration
}

// summary has the results so far.
type summary struct {
	said            map[string][]string // output not printed yet, by package and test
	tests, packages []timed
	results         map[string]int // tests and subtests by result
}

// report copies in to out. Lines that are no events are copied as they are. Its error is one of reading or writing.
func report(in io.Reader, out io.Writer) error {
	w := bufio.NewWriter(out)
	s := summary{said: map[string][]string{}, results: map[string]int{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				_, _ = w.Write(line) // the writer keeps its first error for Flush
			} else {
				s.add(e, w)
			}
			if err := w.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			s.print(w)
			return w.Flush()
		}
		if err != nil {
			return err
		}
	}
}

// add adds an event, and prints output that is ready.
func (s *summary) add(e event, w io.Writer) {
	id := e.Package + " " + e.Test
	took := timed{strings.TrimSpace(id), time.Duration(e.Elapsed * float64(time.Second))}
	switch e.Action {
	case "build-output":
		fmt.Fprint(w, e.Output)
	case "output":
		s.said[id] = append(s.said[id], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			if s.cached(e.Package) {
				s.tests = slices.DeleteFunc(s.tests, func(t timed) bool { return strings.HasPrefix(t.name, id) })
			} else {
				s.packages = append(s.packages, took)
			}
			s.printPackage(e, w)
			return
		}
		s.results[e.Action]++
		if !strings.Contains(e.Test, "/") {
			s.tests = append(s.tests, took)
		}
		if e.Action == "pass" {
			delete(s.said, id)
		}
	}
}

// cached reports whether a package was not tested: go test repeats the output of its last run, with the times of that
// run.
func (s *summary) cached(name string) bool {
	return slices.ContainsFunc(s.said[name+" "], func(text string) bool {
		return strings.HasSuffix(text, "(cached)\n")
	})
}

// printPackage prints the output of an ended package, and of its tests that did not pass.
func (s *summary) printPackage(e event, w io.Writer) {
	var ids []string
	for id := range s.said {
		if strings.HasPrefix(id, e.Package+" ") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range append(ids[min(1, len(ids)):], ids[:min(1, len(ids))]...) {
		// the package itself, which sorts first, comes last
		for _, text := range s.said[id] {
			if text != "PASS\n" {
				fmt.Fprint(w, text)
			}
		}
		delete(s.said, id)
	}
}

// print prints the slowest tests and packages, and how many tests there were.
func (s *summary) print(w io.Writer) {
	slowest(w, "tests", s.tests, slowTest)
	slowest(w, "packages", s.packages, slowPackage)
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", s.results["pass"], s.results["fail"], s.results["skip"])
}

func slowest(w io.Writer, what string, all []timed, limit time.Duration) {
	slices.SortFunc(all, func(a, b timed) int { return int(b.took - a.took) })
	fmt.Fprintf(w, "\nslowest %s:\n", what)
	for _, t := range all[:min(shown, len(all))] {
		mark := ""
		if t.took > limit {
			mark = fmt.Sprintf("  SLOW: over %v", limit)
		}
		fmt.Fprintf(w, "%8.1fs  %s%s\n", t.took.Seconds(), t.name, mark)
	}
}
