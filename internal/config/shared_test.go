package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// Each setting is either shared by all timerds of a schedule or private to each: a new one must choose.
func TestEverySettingIsSharedOrOwn(t *testing.T) {
	t.Parallel()
	own := []string{
		"TIMERD_REDIS_URL", "TIMERD_REDIS_MODE", // ways to one and the same Redis differ
		"TIMERD_REDIS_CA", "TIMERD_REDIS_CERT", "TIMERD_REDIS_KEY",
		"TIMERD_NATS_URL", "TIMERD_NATS_CONTEXT", "TIMERD_NATS_CREDS", "TIMERD_NATS_CA", "TIMERD_NATS_CERT",
		"TIMERD_NATS_KEY", "TIMERD_DATA_DIR",
		"TIMERD_HTTP_ADDR", "TIMERD_LOG_LEVEL", "TIMERD_LOG_FORMAT",
		"TIMERD_CONSOLE_ADDR", "TIMERD_CONSOLE_PASSWORD", "TIMERD_CONSOLE_ACTIONS", "TIMERD_CONSOLE_HOSTS",
		"TIMERD_CONSOLE_PROXIES",
	}
	shared := Config{}.Shared()
	var all []string
	for _, name := range knownVariables() {
		all = append(all, "TIMERD_"+name)
	}
	for _, name := range all {
		_, isShared := shared[name]
		if isOwn := slices.Contains(own, name); isShared == isOwn {
			t.Errorf("%s: shared %v, own %v; want one of them: name it in Config.Shared or in this test", name,
				isShared, isOwn)
		}
	}
	for name := range shared {
		if !slices.Contains(all, name) {
			t.Errorf("%s is shared, and is no setting", name)
		}
	}
}

func TestSharedSettingsThatMeanTheSame(t *testing.T) {
	read := func(settings map[string]string) map[string]string {
		t.Helper()
		testenv.SetVariables(t, settings)
		c, err := Read(SectionNATS | SectionService)
		if err != nil {
			t.Fatal(err)
		}
		return c.Shared()
	}
	long := strings.Repeat("1s,", 200) + "1s"
	a := read(map[string]string{"TIMERD_NAMESPACES": "shop,pay", "TIMERD_LEASE": "10s", "TIMERD_RETRY": "*=" + long})
	b := read(map[string]string{"TIMERD_NAMESPACES": "pay, shop:*", "TIMERD_LEASE": "10000ms", "TIMERD_RETRY": "*=" +
		long + ",2s"})
	for name := range a {
		if same := a[name] == b[name]; same != (name != "TIMERD_RETRY") {
			t.Errorf("%s: %q and %q", name, a[name], b[name])
		}
		if len(a[name]) > 2*maxShared {
			t.Errorf("%s has %d bytes", name, len(a[name]))
		}
	}
}
