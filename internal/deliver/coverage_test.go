package deliver

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/keys"
)

// An event is a group's if every file has matched it that the group went by since the event was stored, however the
// entries were written and however often they changed.
func TestCoverageIsMatchedByAllFiles(t *testing.T) {
	t.Parallel()
	part := rapid.SampledFrom([]string{"", "a", "b"})
	namespaces := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) keys.Namespace {
		return keys.Namespace{App: part.Draw(t, "app"), Module: part.Draw(t, "module"), Type: part.Draw(t, "type")}
	}), 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		type change struct {
			file keys.Namespaces
			from uint64 // the first event under it
		}
		first := keys.Namespaces(namespaces.Draw(t, "file"))
		files := []change{{first, 0}}
		covers := begin(first, 0)
		done, last := uint64(0), uint64(10)
		for range rapid.IntRange(0, 6).Draw(t, "changes") {
			next := keys.Namespaces(namespaces.Draw(t, "file"))
			last += rapid.Uint64Range(0, 5).Draw(t, "events")
			done = rapid.Uint64Range(done, last).Draw(t, "done") // they do not come again
			covers = covers.settled(done).next(next, last+1)
			files = append(files, change{next, last + 1})
		}
		for seq := done + 1; seq <= last+2; seq++ {
			for i := range 27 {
				name := func(i int) string { return []string{"a", "b", "c"}[i%3] }
				k := keys.Key{App: name(i), Module: name(i / 3), Type: name(i / 9), ID: "1"}
				want := true
				for n, f := range files {
					if n+1 == len(files) || files[n+1].from > seq {
						// it was in force when the event was stored, or later
						want = want && f.file.Match(k)
					}
				}
				if got := covers.covers(k, seq); got != want {
					t.Fatalf("%s at %d: covered %t, want %t, by %v after %v", k, seq, got, want, covers, files)
				}
			}
		}
	})
}

// The kept coverage stays small, however often entries come and go.
func TestCoverageStaysSmall(t *testing.T) {
	t.Parallel()
	var covers coverage
	const entries = 100
	for n := range uint64(50) {
		var file keys.Namespaces
		for i := range entries {
			file = append(file, keys.Namespace{App: "app", Module: fmt.Sprint((uint64(i) + n) % (entries + 10)),
				Type: "callback"})
		}
		covers = covers.next(file, 10*n+1)
		if len(covers) != entries {
			t.Fatalf("%d grants for %d entries after %d files", len(covers), entries, n+1)
		}
	}
	if covers = covers.settled(1000); covers[0].From != 0 || covers[entries-1].From != 0 {
		t.Errorf("bounds are kept that bound nothing: %v", covers[entries-1])
	}
}
