package textfile_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/textfile"
)

func TestRead(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "file")
	for content, want := range map[string]string{
		"":                       "",
		"a":                      "a",
		"\ufeff":                 "",
		"\ufeff {}\r\n":          "{}",
		" \n\ufeff{}":            "{}",
		"a\ufeffb\u00a0":         "a\ufeffb",
		"\xff\xfea\x00":          "UTF-16",
		"\xfe\xff\x00a":          "UTF-16",
		"\xef\xbb":               "\xef\xbb",
		"a\nb\n\n":               "a\nb",
		"\ufeff-----BEGIN A----": "-----BEGIN A----",
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := textfile.Read(name)
		if err != nil {
			got = []byte(err.Error())
		}
		if string(got) != want && (err == nil || !strings.Contains(string(got), want)) {
			t.Errorf("%q: %q, want %q", content, got, want)
		}
	}
	if _, err := textfile.Read(name + "x"); err == nil {
		t.Error("a file that is not there was read")
	}
}
