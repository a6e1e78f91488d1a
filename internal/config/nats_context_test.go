package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/testenv"
)

// contexts gives the nats command contexts, each name with its JSON, and returns their directory.
func contexts(t *testing.T, texts map[string]string) (dir string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	dir = filepath.Join(home, "nats", "context")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// readContext reads the settings with TIMERD_NATS_CONTEXT, and further variables.
func readContext(t *testing.T, value string, more map[string]string) (Config, error) {
	t.Helper()
	env := map[string]string{"TIMERD_NATS_CONTEXT": value}
	maps.Copy(env, more)
	testenv.SetVariables(t, env)
	return Read(SectionNATS)
}

// prod is a context as `nats context add` writes it, with each member that it knows.
const prod = `{"description": "", "url": "nats://u:s3cr3t@a.example:4222,nats://b.example", "socks_proxy": "", "token": "",
"user": "timerd", "password": "s3cr3t", "creds": "", "nkey": "", "cert": "", "key": "", "ca": "", "nsc": "", "jetstream_domain": "hub",
"jetstream_api_prefix": "", "jetstream_event_prefix": "", "inbox_prefix": "_T", "user_jwt": "", "color_scheme": "", "tls_first": true}`

func TestNATSContext(t *testing.T) {
	dir := contexts(t, map[string]string{"prod": prod, "empty": "{}", "bom": "\ufeff" + prod, "two words": prod})
	file := filepath.Join(dir, "prod.json")
	elsewhere := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(elsewhere, []byte(prod), 0o600); err != nil {
		t.Fatal(err)
	}
	for value, from := range map[string]string{
		"prod": file, " prod\n": file, file: file, elsewhere: elsewhere,
		"bom": filepath.Join(dir, "bom.json"), "two words": filepath.Join(dir, "two words.json"),
	} {
		c, err := readContext(t, value, nil)
		if err != nil {
			t.Errorf("%q: %v", value, err)
			continue
		}
		got := c.NATS
		if got.URL != "nats://u:s3cr3t@a.example:4222,nats://b.example" || got.User != "timerd" ||
			got.Password != "s3cr3t" ||
			got.Domain != "hub" || got.InboxPrefix != "_T" || !got.TLSFirst || got.ContextFile != from || got.Embedded {
			t.Errorf("%q: %+v", value, got)
		}
		if got.Shown != "nats://xxxxx@a.example:4222,nats://b.example" || len(c.Warnings) > 0 {
			t.Errorf("%q: shown as %s, with the warnings %q", value, got.Shown, c.Warnings)
		}
		if clients := c.Clients(); clients.Context != strings.TrimSpace(value) {
			t.Errorf("%q: commands in fixes name the context %q", value, clients.Context)
		}
	}
	c, err := readContext(t, "empty", nil)
	if err != nil || c.NATS.URL != "nats://127.0.0.1:4222" || c.NATS.User != "" {
		t.Errorf("a context without members: %+v, %v", c.NATS, err)
	}
	// HOME has them too, where the other variable is not set.
	t.Setenv("HOME", filepath.Dir(filepath.Dir(filepath.Dir(file))))
	t.Setenv("XDG_CONFIG_HOME", "")
	if err := os.Rename(filepath.Join(os.Getenv("HOME"), "nats"), filepath.Join(os.Getenv("HOME"), "x")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(os.Getenv("HOME"), ".config"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(os.Getenv("HOME"), "x"),
		filepath.Join(os.Getenv("HOME"), ".config", "nats")); err != nil {
		t.Fatal(err)
	}
	if c, err = readContext(t, "prod", nil); err != nil || c.NATS.User != "timerd" {
		t.Errorf("below HOME: %+v, %v", c.NATS, err)
	}
}

// Of several ways to log in, the nats command's choice counts.
func TestNATSContextLogsInAsTheCommand(t *testing.T) {
	const creds = `"creds": "~/nats.creds"`
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("CREDS_DIR", home)
	if err := os.WriteFile(filepath.Join(home, "nats.creds"), []byte("BEGIN NATS USER JWT, NKEY SEED"),
		0o600); err != nil {
		t.Fatal(err)
	}
	contexts(t, map[string]string{
		"user":  `{"user": "u", "password": "p", ` + creds + `, "token": "t", "user_jwt": "j"}`,
		"creds": `{` + creds + `, "user_jwt": "j", "token": "t"}`,
		"path":  `{"creds": "$CREDS_DIR/nats.creds"}`,
		"jwt":   `{"user_jwt": "j", "user_seed": "s", "token": "t"}`,
		"token": `{"token": "t"}`,
	})
	file := filepath.Join(home, "nats.creds")
	for name, want := range map[string]NATS{
		"user":  {User: "u", Password: "p"},
		"creds": {Creds: file},
		"path":  {Creds: file},
		"jwt":   {Auth: Auth{UserJWT: "j", UserSeed: "s"}},
		"token": {Auth: Auth{Token: "t"}},
	} {
		c, err := readContext(t, name, nil)
		got := NATS{User: c.NATS.User, Password: c.NATS.Password, Creds: c.NATS.Creds, Auth: c.NATS.Auth}
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
}

// A fault names the context's file, the member and the fix, and shows no secret.
func TestNATSContextFaults(t *testing.T) {
	const secret = `"user": "u", "password": "s3cr3t", "token": "s3cr3t", "user_seed": "s3cr3t"`
	dir := contexts(t, map[string]string{
		"syntax":  `{"password": "s3cr3t", "url"}`,
		"kind":    `{"url": 4222, ` + secret + `}`,
		"scheme":  `{"url": "http://u:s3cr3t@a.example", ` + secret + `}`,
		"url":     `{"url": "nats://u:s3/s3cr3t@a.example", ` + secret + `}`,
		"creds":   `{"creds": "/no/such.creds", "token": "s3cr3t"}`,
		"op":      `{"creds": "op://vault/s/creds"}`,
		"nkey":    `{"nkey": "/no/such.nk", "token": "s3cr3t"}`,
		"ca":      `{"ca": "/no/such.pem", ` + secret + `}`,
		"cert":    `{"cert": "/no/such.pem", ` + secret + `}`,
		"key":     `{"key": "/no/such.pem", ` + secret + `}`,
		"nsc":     `{"nsc": "nsc://op/account/user", "socks_proxy": "socks5://u:s3cr3t@x", "windows_cert_store": "user"}`,
		"domains": `{"jetstream_domain": "hub", "jetstream_api_prefix": "x"}`,
	})
	for name, wants := range map[string][]string{
		"syntax": {"FILE: ", "want the JSON that nats context add writes"},
		"kind":   {"FILE: ", "cannot unmarshal number", "url", "want the JSON"},
		"scheme": {`url of FILE: "http://xxxxx@a.example": unknown scheme "http": want nats://`},
		"url":    {"url of FILE: not a URL that can be read"},
		"creds": {"creds of FILE: open /no/such.creds: no such file or directory: want a readable file with NATS " +
			"credentials"},
		"op":   {"creds of FILE: open op://vault/s/creds: no such file"},
		"nkey": {"nkey of FILE: ", "/no/such.nk", "want a readable file with the seed of a user"},
		"ca":   {"ca of FILE: open /no/such.pem: no such file or directory: want a readable PEM file"},
		"cert": {"key of FILE: is not set: the certificate /no/such.pem"},
		"key":  {"cert of FILE: is not set: the private key of "},
		"nsc": {"nsc of FILE: timerd cannot use it: leave it empty", "socks_proxy of FILE: ",
			"windows_cert_store of FILE: "},
		"domains": {"jetstream_domain of FILE: jetstream_api_prefix is set too: leave one of them empty"},
		"prdo": {`"prdo": ` + dir + " has no such context, there are ca, cert, creds, ",
			"want one of nats context ls, or make it by nats context add"},
		"../url": {`"../url": want the name of a context of the nats command, or the path of its file`},
		"/no/it": {"open /no/it: no such file or directory"},
	} {
		_, err := readContext(t, name, nil)
		if err == nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range append(wants, "TIMERD_NATS_CONTEXT: ") {
			if want = strings.ReplaceAll(want, "FILE", filepath.Join(dir, name+".json")); !strings.Contains(err.Error(),
				want) {
				t.Errorf("%s: %v\n\twant %s", name, err, want)
			}
		}
		testenv.Lacks(t, err.Error(), "s3cr3t")
	}
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("HOME", "")
	const want = "neither XDG_CONFIG_HOME nor HOME is set: want the path of the context's file, such as " +
		"/etc/timerd/nats.json"
	if _, err := readContext(t, "ca", nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("without a home: %v", err)
	}
}

// A context is used where it is named, and alone.
func TestNATSContextBesideOthers(t *testing.T) {
	dir := contexts(t, map[string]string{"prod": prod})
	// What `nats context select prod` writes.
	if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "context.txt"), []byte("prod"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"", " "} {
		if c, err := readContext(t, value, nil); err != nil || c.NATS.URL != "nats://127.0.0.1:4222" ||
			c.NATS.Context != "" {
			t.Errorf("%q: the context that is selected changed %+v, %v", value, c.NATS, err)
		}
	}
	for name, value := range map[string]string{
		"TIMERD_NATS_URL": "nats://other.example", "TIMERD_NATS_CREDS": "/x", "TIMERD_NATS_CA": "/x",
		"TIMERD_NATS_CERT": "/x", "TIMERD_NATS_KEY": "/x",
	} {
		c, err := readContext(t, "prod", map[string]string{name: value})
		const want = "TIMERD_NATS_URL, _CREDS, _CA, _CERT and _KEY have no effect: TIMERD_NATS_CONTEXT is set"
		if err != nil || !slices.Equal(c.Warnings, []string{want}) ||
			c.NATS.Creds+c.NATS.CA+c.NATS.Cert+c.NATS.Key != "" {
			t.Errorf("%s: %+v, %q, %v", name, c.NATS, c.Warnings, err)
		}
		if strings.Contains(c.NATS.URL, "other") {
			t.Errorf("the server is %s", c.NATS.URL)
		}
	}
	// timerd dev has a server of its own.
	testenv.SetVariables(t, map[string]string{"TIMERD_NATS_CONTEXT": "nonesuch"})
	dev := Dev{RedisURL: "redis://127.0.0.1:1", NATSAddr: "127.0.0.1:2", DataDir: t.TempDir(), HTTPAddr: "off",
		ConsoleAddr: "off"}
	if c, err := dev.Read(); err != nil || !c.NATS.Embedded {
		t.Errorf("timerd dev: %+v, %v", c.NATS, err)
	}
}
