package schedule

import (
	"strings"
	"testing"
)

// The library that serve loads knows no virtual clock. That of dev --virtual differs by its two rooms alone.
func TestOnlyTheVirtualLibraryHasAnOffset(t *testing.T) {
	t.Parallel()
	serve, virtual := newScripts(DefaultMaxPayload, false, 0), newVirtualScripts(DefaultMaxPayload, 0)
	for name, texts := range map[string][2]string{
		"functions": {serve.library(), virtual.library()},
		"steps":     {serve.makeSteps("x_").text, virtual.makeSteps("x_").text},
	} {
		for _, word := range []string{"'ahead'", "clock.AHEAD", "run.real", "PEXPIRETIME', key) ~= at"} {
			if strings.Contains(texts[0], word) {
				t.Errorf("%s: %q is in the library of serve", name, word)
			}
			if !strings.Contains(texts[1], word) {
				t.Errorf("%s: %q is not in the virtual library", name, word)
			}
		}
		_, texts[0], _ = strings.Cut(texts[0], "\n") // the names of the libraries
		_, texts[1], _ = strings.Cut(texts[1], "\n")
		for _, room := range []string{"clock", "ttl"} {
			for i, s := range []*scripts{serve, virtual} {
				own := "do\n" + s.rooms.all[room].text + "end\n"
				if strings.Count(texts[i], own) != 1 {
					t.Fatalf("%s: the room %s is %d times there", name, room, strings.Count(texts[i], own))
				}
				texts[i] = strings.Replace(texts[i], own, "", 1)
			}
		}
		if name == "steps" { // the name of a library of steps is by its text
			for i := range texts {
				_, texts[i], _ = strings.Cut(texts[i], "\n")
			}
		}
		if texts[0] != texts[1] {
			t.Errorf("%s: the libraries differ by more than the rooms clock and ttl", name)
		}
	}
	for _, room := range []string{"clock", "ttl"} {
		for _, name := range functionsOf(serve.rooms.all[room].text) {
			if !strings.Contains(virtual.rooms.all[room].text, "function "+name+"(") {
				t.Errorf("the virtual room lacks %s", name)
			}
		}
	}
}

// functionsOf returns the names of the functions of a room.
func functionsOf(text string) (names []string) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "function "); ok {
			name, _, _ := strings.Cut(rest, "(")
			names = append(names, name)
		}
	}
	return names
}
