package config

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

func TestConsole(t *testing.T) {
	testenv.SetVariables(t, map[string]string{
		"TIMERD_NAMESPACES": "*", "TIMERD_CONSOLE_ADDR": "0.0.0.0:8081", "TIMERD_CONSOLE_PASSWORD": "s3cret:word",
		"TIMERD_CONSOLE_ACTIONS": "on", "TIMERD_CONSOLE_HOSTS": " Timerd.Example.com ,, b:8443 ",
		"TIMERD_CONSOLE_PROXIES": "10.1.2.3/8, 192.0.2.7,fd00::/8,",
	})
	c, err := Read(SectionService)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Console; got.Addr != "0.0.0.0:8081" || !got.Actions ||
		fmt.Sprint(got.Hosts) != "[timerd.example.com b:8443]" ||
		fmt.Sprint(got.Proxies) != "[10.0.0.0/8 192.0.2.7/32 fd00::/8]" {
		t.Errorf("%+v", got)
	}
	for given, want := range map[string]bool{"s3cret:word": true, "": false, "s3cret:wor": false,
		"s3cret:words": false} {
		if c.Console.Password.Matches(given) != want {
			t.Errorf("%q: want %v", given, want)
		}
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "console", c.Console, "password", c.Console.Password)
	testenv.Lacks(t, log.String()+fmt.Sprintf("%v %+v %#v %s", c, c, c.Console, c.Console.Password), "s3cret")
}

// Without a password nobody is let in by one.
func TestNoPassword(t *testing.T) {
	t.Parallel()
	if p := NewPassword(""); p.IsSet() || p.Matches("") || (Password{}).Matches("") {
		t.Error("an empty password matches")
	}
}

// A key is the same for the same password and purpose alone.
func TestPasswordKey(t *testing.T) {
	t.Parallel()
	key := func(password, purpose string) string { return string(NewPassword(password).Key(purpose)) }
	if a := key("a", "x"); a != key("a", "x") || a == key("b", "x") || a == key("a", "y") || len(a) != 32 {
		t.Error("keys do not go by password and purpose")
	}
}
