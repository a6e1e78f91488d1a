package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

func TestConfigEmbedded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	for value, listen := range map[string]string{"embedded": "", "embedded://127.0.0.1:4333": "127.0.0.1:4333"} {
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": value, "TIMERD_DATA_DIR": dir,
			"TIMERD_NATS_CREDS": "/x"})
		c, err := Read(SectionNATS)
		if err != nil {
			t.Fatal(err)
		}
		if !c.NATS.Embedded || c.NATS.Listen != listen || c.NATS.DataDir != dir {
			t.Errorf("%s: %+v", value, c.NATS)
		}
		if len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "no effect") {
			t.Errorf("warnings: %v", c.Warnings)
		}
	}
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": "embedded://4222", "TIMERD_DATA_DIR": dir})
	if _, err := Read(SectionNATS); err == nil {
		t.Error("embedded://4222 was accepted")
	}
}

// Whoever reaches the server may do everything, so other machines need a password.
func TestConfigEmbeddedCredentials(t *testing.T) {
	read := func(url string) (NATS, error) {
		testenv.SetVariables(t, map[string]string{"TIMERD_NATS_URL": url, "TIMERD_DATA_DIR": "data"})
		c, err := Read(SectionNATS)
		return c.NATS, err
	}
	for _, url := range []string{
		"embedded", "embedded://127.0.0.1:4222", "embedded://127.8.8.8:0", "embedded://[::1]:4222",
		"embedded://localhost:4222",
		"embedded://u:p@127.0.0.1:4222", "embedded://u:p@0.0.0.0:4222", "embedded://u:p@:4222",
		"embedded://u:p@[::]:4222", "embedded://u:p@timerd.example:4222",
	} {
		c, err := read(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if has := strings.Contains(url, "@"); has != (c.User == "u" && c.Password == "p") ||
			strings.Contains(c.Listen, "@") {
			t.Errorf("%s: %+v", url, c)
		}
		if out := c.FromOutside(); strings.Contains(out.URL, "//:") || out.User != c.User ||
			out.Password != c.Password {
			t.Errorf("%s: from outside %+v", url, out)
		}
	}
	for _, url := range []string{
		"embedded://0.0.0.0:4222", "embedded://:4222", "embedded://[::]:4222", "embedded://10.0.0.1:4222",
		"embedded://timerd.example:4222",
		"embedded://127.0.0.1.example:4222", "embedded://[::ffff:10.0.0.1]:4222",
	} {
		if _, err := read(url); err == nil || !strings.Contains(err.Error(),
			"without a password: want embedded://user:password@"+strings.TrimPrefix(url, "embedded://")) {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"embedded://u@0.0.0.0:4222", "embedded://u@127.0.0.1:4222",
		"embedded://u:@127.0.0.1:4222", "embedded://:p@127.0.0.1:4222", "embedded://@0.0.0.0:4222"} {
		if _, err := read(url); err == nil || !strings.Contains(err.Error(), "the user or the password is missing") {
			t.Errorf("%s: %v", url, err)
		}
	}
	if c, err := read("embedded://u:p%40%3A%2F@127.0.0.1:4222"); err != nil || c.Password != "p@:/" {
		t.Errorf("an encoded password: %q, %v", c.Password, err)
	}
}
