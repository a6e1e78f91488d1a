package deliver_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/deliver"
	"github.com/timerd-io/timerd/keys"
)

// Secrets of the tests, as Standard Webhooks writes them.
const (
	secretA = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	secretB = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func variables(name string) (string, bool) {
	value, ok := map[string]string{"A": secretA, "B": secretB + "\n", "TOKEN": "Bearer t0ps3cret", "EMPTY": "",
		"SHORT": "whsec_c2hvcnQ=", "LONG": "whsec_" + strings.Repeat("A", 88), "BYTES23": "whsec_" +
			strings.Repeat("A", 31) + "=", "TEXT": "no base64!"}[name]
	return value, ok
}

// parse reads a file that has no faults.
func parse(t testing.TB, text string) *deliver.Config {
	t.Helper()
	config, faults := deliver.Parse([]byte(text), variables)
	if len(faults) > 0 {
		t.Fatalf("faults %v of\n%s", faults, text)
	}
	config.File.Changed = time.Now()
	return config
}

func TestParse(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(secretB+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := parse(t, `
group: shop
start: 2026-11-20T09:00:00Z
version: 7
endpoints:
  - match: pay:order:callback
    url: " https://Hooks.Example.com./pay it?x=1 #part "
    secrets: [env:A, "file:`+file+`"]
    timeout: 3s
    concurrency: 7
    rate: 90/m
    headers: {X-Shop: one, Authorization: env:TOKEN}
    body: data
    schemes: [https]
    hosts: [hooks.example.com, "*.example.org"]
    allow_private: [10.1.2.3/8, "fd00::1"]
    deny: [10.1.0.0/16]
    ports: [443, 8443]
    expire: 24h
  - match: shop
    url: "{data.notify.url} "
`)
	first, second := config.Endpoints[0], config.Endpoints[1]
	if first.Match != (keys.Namespace{App: "pay", Module: "order", Type: "callback"}) ||
		first.To() != "https://hooks.example.com" ||
		first.Timeout != 3*time.Second || first.Concurrency != 7 || first.Rate != 1.5 ||
		first.Headers.Get("Authorization") != "Bearer t0ps3cret" ||
		first.Body != deliver.BodyData || !first.Signs() || first.Expire != 24*time.Hour ||
		len(first.AllowPrivate) != 2 || first.AllowPrivate[0].String() != "10.0.0.0/8" ||
		first.AllowPrivate[1].String() != "fd00::1/128" || first.Deny[0].String() != "10.1.0.0/16" ||
		!slices.Equal(first.Ports, []uint16{443, 8443}) {
		t.Errorf("first endpoint %+v", first)
	}
	if config.Group != "shop" || !config.Start.At.Equal(time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)) ||
		config.File.Version != 7 || len(config.File.Sum) != 64 {
		t.Errorf("%+v", config)
	}
	if other := parse(t, "endpoints: [{match: a, url: 'https://x'}]"); other.Group != "deliver" ||
		other.Start != (deliver.Start{}) || other.File.Version != 0 || other.File.Sum == config.File.Sum {
		t.Errorf("%+v", other)
	}
	if second.URL != "" || second.To() != "{data.notify.url}" || second.Timeout != 15*time.Second ||
		second.Concurrency != 64 || second.Rate != 0 ||
		second.Body != deliver.BodyEvent || second.Signs() || second.Expire != 72*time.Hour {
		t.Errorf("second endpoint %+v", second)
	}
}

// All faults are reported at once, with their lines, and no secret.
func TestParseFaults(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text string
		want []string
	}{
		{"", []string{"no documents in stream"}},
		{"# nothing", []string{"n"}},
		{"endpoints: {}", []string{"want a list endpoints:"}},
		{"endpoints: []", []string{"at least one entry"}},
		{"endpoints: [", []string{"line 2: not YAML"}},
		{"- a", []string{"line 1: want a list endpoints:, got a list"}},
		{"other: 1\nendpoints: [{match: a, url: 'http://b'}]",
			[]string{`line 1: "other": unknown field: want endpoints, group, start, version`}},
		{"endpoints: [text]", []string{`line 1: want an endpoint with match and url, got "text"`}},
		{"endpoints:\n- secret: a", []string{`line 2: "secret": unknown field: want match, url,`,
			"line 2: match is missing", "line 2: url is missing"}},
		{"endpoints:\n- match: 'a:b:c:d'\n  match: a\n  url: https://x",
			[]string{"line 2: match: namespace", "line 3: match: line 2 has it too"}},
		{"endpoints:\n- match: shop order\n  url: https://x",
			[]string{"line 2: match: namespace \"shop order\": a blank is not allowed: leave it out (commas " +
				"divide a list); if keys have it, write shop%20order"}},
		{"endpoints:\n- {match: a, url: 'https://x'}\n- {match: 'a:b', url: 'https://y'}",
			[]string{"line 3: match: a:b is covered by the earlier a"}},
		{
			"endpoints:\n- match: a\n  url: ftp://user:s3cr3t@x\n  timeout: 10\n  concurrency: 0\n  rate: 100\n  " +
				"body: json\n  expire: never\n  ca: /nowhere",
			[]string{
				"line 4: timeout:", "line 5: concurrency:", "line 6: rate:",
				"line 7: body:", "line 8: expire:", "line 9: ca: open /nowhere",
			},
		},
		{"endpoints: [{match: a, url: 'ftp://user:s3cr3t@x'}]", []string{`line 1: url: bad URL: its scheme is "ftp"`}},
		{"endpoints: [{match: a, url: 'https://user:s3cr3t@x/'}]", []string{"url: bad URL: it holds a user"}},
		{"endpoints: [{match: a, url: 'https://x/{data.a}'}]", []string{"want a URL, or only {data.NAME}"}},
		{"endpoints: [{match: a, url: '{data.a..b}'}]", []string{"without empty names"}},
		{"endpoints:\n- {match: 'a:b:c:d', url: 'https://x'}\n- {match: 'a:', url: 'https://x'}\n- {match: a, url: " +
			"'https://x'}", []string{"line 2: match: namespace", "line 3: match: namespace"}},
		{"endpoints:\n- {match: '*', url: 'https://x'}\n- {match: 'a:', url: 'https://x'}",
			[]string{"line 3: match: namespace"}},
		{"endpoints: [{match: a, url: '{data.a}', hosts: ['a:80'], headers: {Authorization: env:TOKEN}}]",
			[]string{`number 1: "a:80"`}},
		{"endpoints: [{match: a, url: 'https://x y/'}]", []string{"url: bad URL: it is malformed"}},
		{"endpoints: [{match: a, url: 'https://x:0'}]", []string{"its port is not from 1"}},
		{"endpoints: [{match: a, url: 'https://bücher.example'}]", []string{"is not a host"}},
		{
			"endpoints:\n- match: a\n  url: https://x\n  secrets: [whsec_s3cr3ts3cr3ts3cr3ts3cr3t, env:NONE, " +
				"env:EMPTY, env:SHORT, env:TEXT, file:/nowhere, {a: s3cr3t}]",
			[]string{
				"number 1: want env:NAME or file:PATH", "number 2: the environment variable NONE is not set",
				"number 3: the environment variable EMPTY",
				"number 4: env:SHORT: want whsec_ and 24 to 64 bytes", "number 5: env:TEXT: want whsec_",
				"number 6: open /nowhere", "number 7: want one value",
			},
		},
		{"endpoints: [{match: a, url: 'https://x', secrets: whsec_s3cr3t}]", []string{"secrets: want a list"}},
		{
			"endpoints:\n- match: a\n  url: https://x\n  headers: {Webhook-Id: 1, 'a b': c, X: \"s3cr3t\\n\", Y: " +
				"env:NONE, host: h}",
			[]string{"Webhook-Id is set by timerd", `"a b" is not a header name`, "X: want printable ASCII",
				"Y: the environment variable NONE", "Host is set by timerd"},
		},
		{"endpoints: [{match: a, url: 'https://x', headers: s3cr3t}]", []string{"headers: want names and values"}},
		{"endpoints: [{match: a, url: 'https://x', hosts: ['a:80', 'a*', '', '*.'], allow_private: [ten], schemes: " +
			"[ws]}]", []string{
			`number 1: "a:80": want a host without a port`, `number 2: "a*"`, `number 3: ""`, `number 4: "*."`,
			`number 1: "ten": want addresses`, `number 1: "ws": want http or https`,
		}},
		{"endpoints: [{match: a, url: 'https://x', ports: [0, 70000, b], deny: [ten]}]", []string{
			`number 1: "0": want a port`, `number 2: "70000"`, `number 3: "b"`, `number 1: "ten": want addresses`,
		}},
		{"endpoints: [{match: a, url: 'https://x', ports: some}]", []string{"ports: want a list"}},
		{"endpoints: [{match: a, url: 'https://x:444', ports: [443]}]", []string{"its port 444 is not in ports:"}},
		{"endpoints: [{match: a, url: 'https://x', secrets: [env:LONG, env:BYTES23]}]",
			[]string{"number 1: env:LONG: want whsec_ and 24 to 64 bytes", "number 2: env:BYTES23"}},
		{"endpoints: [{match: a, url: '{data.a}', headers: {Authorization: env:TOKEN, X: env:A, Y: open}}]", []string{
			"headers: Authorization, X would reach any host that a payload names: list the allowed hosts in hosts:",
		}},
		{"group: a b\nstart: soon\nversion: -1\nendpoints: [{match: a, url: 'https://x'}]", []string{
			`line 1: group: "a b": want a name`, `line 2: start: "soon": want all, now, or a time`,
			`line 3: version: "-1": want a whole number from 1 on`,
		}},
		{"endpoints: [{match: a, url: 'https://x'}]\ngroup: [a]\ngroup: b",
			[]string{"line 2: group: want one value, got a list", "line 3: group: line 2 has it too"}},
		{"endpoints: [{match: a, url: 'https://x', hosts: [y]}]",
			[]string{`the host "x" is not among the allowed ones`}},
	} {
		_, faults := deliver.Parse([]byte(test.text), variables)
		var lines []string
		for _, f := range faults {
			lines = append(lines, f.String())
		}
		all := strings.Join(lines, "\n")
		for _, want := range test.want {
			if !strings.Contains(all, want) {
				t.Errorf("%q has not the fault %q:\n%s", test.text, want, all)
			}
		}
		if len(lines) != len(test.want) {
			t.Errorf("%q: %d faults, want %d:\n%s", test.text, len(lines), len(test.want), all)
		}
		if strings.Contains(all, "s3cr3t") {
			t.Errorf("%q: a fault tells a secret:\n%s", test.text, all)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("endpoints: [{match: a, url: 'https://x', secrets: [env:A], headers: {X: env:TOKEN}, allow_private: " +
		"[10.0.0.0/8], hosts: ['*.x']}]")
	f.Add("endpoints:\n- &a {match: a, url: '{data.a}'}\n- *a\n- match: [")
	f.Fuzz(func(t *testing.T, text string) {
		config, faults := deliver.Parse([]byte(text), variables)
		for _, fault := range faults {
			if s := fault.String(); s == "" || strings.Contains(s, "t0ps3cret") || strings.Contains(s, secretA) {
				t.Errorf("fault %q", s)
			}
		}
		if len(faults) > 0 {
			return
		}
		for _, e := range config.Endpoints {
			if e.To() == "" || !config.Matches().Apart().Cover(e.Match) {
				t.Errorf("endpoint %+v", e)
			}
		}
	})
}
