package clockstep

import (
	"strings"
	"testing"
)

func TestPatchRefusesAnotherClock(t *testing.T) {
	for _, source := range []string{"package time\n", reading + reading} {
		if out, err := patch([]byte(source)); err == nil || !strings.Contains(err.Error(),
			"adapt the patch in torture/internal/clockstep") {
			t.Errorf("patch(%q) = %q, %v; want an error that says what to do", source, out, err)
		}
	}
}
