package keys_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/keys"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want keys.Key
		err  error
	}{
		{in: "app1:trans:notice:1615283234", want: keys.Key{App: "app1", Module: "trans", Type: "notice",
			ID: "1615283234"}},
		{in: "a:b:c:d:e::f", want: keys.Key{App: "a", Module: "b", Type: "c", ID: "d:e::f"}},
		{in: "a:b:c::", want: keys.Key{App: "a", Module: "b", Type: "c", ID: ":"}},
		{in: "\x00:\xff:\r\n:>", want: keys.Key{App: "\x00", Module: "\xff", Type: "\r\n", ID: ">"}},
		{in: "", err: keys.ErrNotTimer},
		{in: "a:b:c", err: keys.ErrNotTimer},
		{in: "a:b:c:", err: keys.ErrNotTimer},
		{in: ":b:c:d", err: keys.ErrNotTimer},
		{in: "a::c:d", err: keys.ErrNotTimer},
		{in: "a:b::d", err: keys.ErrNotTimer},
		{in: "a:b:c:" + strings.Repeat("d", 1018), want: keys.Key{App: "a", Module: "b", Type: "c",
			ID: strings.Repeat("d", 1018)}},
		{in: "a:b:c:" + strings.Repeat("d", 1019), err: keys.ErrTooLong},
		{in: strings.Repeat("a", 128) + ":b:c:d", want: keys.Key{App: strings.Repeat("a", 128), Module: "b", Type: "c",
			ID: "d"}},
		{in: "a:" + strings.Repeat("b", 129) + ":c:d", err: keys.ErrTooLong},
	} {
		got, err := keys.Parse(c.in)
		if !errors.Is(err, c.err) || err == nil && got != c.want {
			t.Errorf("Parse(%.40q) = %.60q, %v; want %.60q, %v", c.in, got, err, c.want, c.err)
		}
	}
}

func TestSubject(t *testing.T) {
	t.Parallel()
	key := keys.Key{App: "app.1", Module: "*", Type: ">é\r\n", ID: "x"}
	got := key.Subject("timers", keys.Fired)
	if want := "timers.fired.app%2E1.%2A.%3E%C3%A9%0D%0A"; got != want {
		t.Errorf("subject %s, want %s", got, want)
	}
	if want := "timers.fired.>"; keys.SubjectAll("timers", keys.Fired) != want {
		t.Errorf("all subjects %s, want %s", keys.SubjectAll("timers", keys.Fired), want)
	}
	for _, bad := range []string{"", "timers.fired.a.b", "timers.fired.a.b.c.d", "timers.retry.a.b.c",
		"timers.fired.a..c", "timers.fired.a.%2.c", "timers.fired.a.%ZZ.c", "timers.fired.a.é.c"} {
		if _, _, _, err := keys.ParseSubject(bad, "timers", keys.Fired); err == nil {
			t.Errorf("ParseSubject(%q) found no fault", bad)
		}
	}
}

func TestEventID(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key     string
		due     int64
		attempt int
		want    string
	}{
		{"app1:trans:notice:1615283234", 1763629200000, 1, "app1:trans:notice:1615283234@1763629200000.1"},
		{"a:b:c:x y%\r\né~!", 5, 12, "a:b:c:x%20y%25%0D%0A%C3%A9~!@5.12"},
	} {
		if got := keys.EventID(c.key, c.due, c.attempt); got != c.want {
			t.Errorf("id %s, want %s", got, c.want)
		}
		if key, due, attempt, ok := keys.ParseEventID(c.want); key != c.key || due != c.due || attempt != c.attempt ||
			!ok {
			t.Errorf("%s is read as %q, %d, %d, %t", c.want, key, due, attempt, ok)
		}
	}
	long := keys.EventID("a:b:c:"+strings.Repeat("d", 600), 5, 1)
	if !strings.HasPrefix(long, "sha256:") || len(long) != 71 {
		t.Errorf("id of a long key: %s", long)
	}
	for _, id := range []string{long, "", "a:b:c:d@5", "a:b:c:d@5.x", "a:b:c:d@05.1", "a:b:c:%64@5.1", "a:b:c:%@5.1",
		"a:b:c:d e@5.1"} {
		if _, _, _, ok := keys.ParseEventID(id); ok {
			t.Errorf("%q is read as an id", id)
		}
	}
}

func TestParseNamespaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in, want string
		match    string
		other    string
	}{
		{"*", "*", "a:b:c:d", ""},
		{"shop, pay:order", "shop,pay:order", "pay:order:x:1", "pay:refund:x:1"},
		{"shop:*:cancel", "shop:*:cancel", "shop:x:cancel:1", "shop:x:other:1"},
		{"shop:order,shop", "shop", "shop:x:y:z", "shopx:order:y:z"},
		{"*:*:*", "*", "a:b:c:d", ""},
		{"a,a,a:b", "a", "a:b:c:d", "b:b:c:d"},
		{"a%2Cb:%2A", "a%2Cb:%2A", "a,b:*:c:d", "a,b:x:c:d"},
		{"%22a%22:%5Bb%5D%20%3b", "%22a%22:%5Bb%5D%20%3B", `"a":[b] ;:c:d`, "a:b:c:d"},
		{"{shop}:a.b/c@d", "{shop}:a.b/c@d", "{shop}:a.b/c@d:c:d", "shop:a.b/c@d:c:d"},
		{"店", "%E5%BA%97", "店:b:c:d", "a:b:c:d"},
	} {
		set, err := keys.ParseNamespaces(c.in)
		if err != nil || set.String() != c.want {
			t.Errorf("ParseNamespaces(%q) = %s, %v; want %s", c.in, set, err, c.want)
			continue
		}
		in, _ := keys.Parse(c.match)
		if !set.Match(in) {
			t.Errorf("%q does not match %s", c.in, c.match)
		}
		if out, err := keys.Parse(c.other); err == nil && set.Match(out) {
			t.Errorf("%q matches %s", c.in, c.other)
		}
	}
	for _, bad := range []string{"", " , ", "a:b:c:d", "a::c", "a*", "a:%4", strings.Repeat("a", 129)} {
		if set, err := keys.ParseNamespaces(bad); err == nil {
			t.Errorf("ParseNamespaces(%.20q) = %s, want an error", bad, set)
		}
	}
	_, err := keys.ParseNamespaces("a::b,ok,c*")
	if err == nil || !strings.Contains(err.Error(), `"a::b"`) || !strings.Contains(err.Error(), `"c*"`) {
		t.Errorf("both faults should be named: %v", err)
	}
}

// Characters around a namespace in files and shells are no part of it, unless written %XX.
func TestNamespacesWithTheTextAroundThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`"shop,pay"`: {
			`"\"shop": "\"" is not allowed: leave it out (commas divide a list); if keys have it, write %22shop`, "pay%22"},
		"'shop'":                {`: "'" is not allowed`, "write %27shop%27"},
		"`shop`":                {"write %60shop%60"},
		"[shop, pay]":           {`: "[" is not allowed`, "write %5Bshop", `: "]" is not allowed`, "write pay%5D"},
		`["shop", "pay"]`:       {"write %5B%22shop%22", "write %22pay%22%5D"},
		"(shop)":                {"write %28shop%29"},
		"<app>":                 {"write %3Capp%3E"},
		"shop;pay":              {`: ";" is not allowed`, "write shop%3Bpay"},
		"shop|pay":              {"write shop%7Cpay"},
		"shop order":            {": a blank is not allowed", "write shop%20order"},
		"shop:order pay":        {"write shop:order%20pay"},
		"- shop\n- pay":         {": a blank is not allowed", "write -%20shop%0A-%20pay"},
		"shop\tpay":             {"the invisible U+0009", "write shop%09pay"},
		"shop\r\npay":           {"the invisible U+000D", "write shop%0D%0Apay"},
		"shop\u00a0pay":         {"the invisible U+00A0", "write shop%C2%A0pay"},
		"\ufeffshop":            {"the invisible U+FEFF", "write %EF%BB%BFshop"},
		"shop\u200bpay":         {"the invisible U+200B"},
		"shop，pay":              {`: "，" is not allowed`, "write shop%EF%BC%8Cpay"},
		"shop：order":            {`: "：" is not allowed`},
		"“shop”":                {`: "“" is not allowed`, "write %E2%80%9Cshop%E2%80%9D"},
		"‘shop’":                {`: "‘" is not allowed`},
		"«shop»":                {`: "«" is not allowed`},
		"【shop】":                {`: "【" is not allowed`},
		"NAMESPACES=shop":       {`: "=" is not allowed`, "write NAMESPACES%3Dshop"},
		"$APP":                  {`: "$" is not allowed`, "write %24APP"},
		`shop\,pay`:             {`: "\\" is not allowed`},
		"ok, shop order, %20ok": {"write shop%20order"},
	} {
		set, err := keys.ParseNamespaces(text)
		if err == nil {
			t.Errorf("%q: taken for %s", text, set)
			continue
		}
		for _, one := range want {
			if !strings.Contains(err.Error(), one) {
				t.Errorf("%q: %v, want %s", text, err, one)
			}
		}
		for line := range strings.Lines(err.Error()) { // the form shown by an error parses as the original
			_, wrong, _ := strings.Cut(line, "namespace ")
			quoted, _ := strconv.QuotedPrefix(wrong)
			written, _ := strconv.Unquote(quoted)
			_, form, _ := strings.Cut(strings.TrimSpace(line), "write ")
			n, err := keys.ParseNamespace(form)
			if parts := strings.Join([]string{n.App, n.Module, n.Type}, ":"); err != nil ||
				strings.TrimRight(parts, ":") != written {
				t.Errorf("%s: stands for %q (%v)", line, parts, err)
			}
		}
	}
}

func TestNamespaceSubject(t *testing.T) {
	t.Parallel()
	n := keys.Namespace{App: "shop.eu", Type: "cancel"}
	if got, want := n.Subject("timers", keys.Dead), "timers.dead.shop%2Eeu.*.cancel"; got != want {
		t.Errorf("subject %s, want %s", got, want)
	}
	if got, want := (keys.Namespace{App: "a[b]*"}).Glob(), `a\[b\]\*:*:*:*`; got != want {
		t.Errorf("glob %s, want %s", got, want)
	}
}

func TestIndexKeysAreNobodysTimers(t *testing.T) {
	t.Parallel()
	p := keys.Single
	for _, name := range []string{p.Due(), p.Data(), p.Firing(), p.FiringData(), p.Fired(), p.Retried(), p.Known(),
		p.Aside(), p.Refused(), p.Owed(), p.Members(), p.Unable(), p.Silent(), p.Hearing(), p.About(), p.Audits(),
		p.Calls(), p.Ahead(), p.Prefix(), keys.CanaryKey(p, "host-1", 1), keys.MarkKey("x"), keys.Installation,
		keys.InstallationProbe("x")} {
		if strings.Count(name, ":") != 2 {
			t.Errorf("%s has %d colons: a namespace pattern would deliver its events", name, strings.Count(name, ":"))
		}
	}
}

func TestInstallationSubject(t *testing.T) {
	t.Parallel()
	n := keys.Names{Prefix: "prod.timers"}
	if got := n.InstallationSubject("a.> b"); got != "prod.timers.installation.a%2E%3E%20b" {
		t.Errorf("subject %s", got)
	}
}

func TestKeyspaceNames(t *testing.T) {
	t.Parallel()
	if got := keys.KeyspacePattern(3, keys.Namespace{App: "shop"}); got != "__keyspace@3__:shop:*:*:*" {
		t.Errorf("pattern %s", got)
	}
	if got := keys.ExpiredChannel(0); got != "__keyevent@0__:expired" {
		t.Errorf("channel %s", got)
	}
}

// A malformed part ends a message, and the parts before it count.
func TestParseNext(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		"1700 hhhhhh 1800 hhhhhi -1": "1700 true [hhhhhh 1800 hhhhhi -1]",
		"1700 hhhhhh 1800 hhhhhi":    "1700 true [hhhhhh 1800]",
		"1700 hhhhhh x hhhhhi 1800":  "1700 true []",
		"1700":                       "1700 true []",
		"x hhhhhh 1800":              "0 false [hhhhhh 1800]",
		"":                           "0 false []",
	} {
		at, next, ok := keys.ParseNext(message)
		var said []string
		for p, due := range next {
			said = append(said, fmt.Sprintf("%s %d", p, due))
		}
		if got := fmt.Sprint(at, ok, said); got != want {
			t.Errorf("%q: %s, want %s", message, got, want)
		}
	}
}

// Partitions are kept as long as something is due there, but not their messages, which may be long.
func TestPartitionsKeepNoMessage(t *testing.T) {
	t.Parallel()
	message := "1700 1800 0 " + strings.Repeat("x", 1000)
	partOf := func(p keys.Partition) bool {
		for i := range message {
			if unsafe.StringData(string(p)) == unsafe.StringData(message[i:]) {
				return true
			}
		}
		return false
	}
	if wake, ok := keys.ParseWake(message); !ok || partOf(wake.Partition) {
		t.Errorf("%q, %t: is part of the message, or not parsed", wake.Partition, ok)
	}
	_, next, _ := keys.ParseNext(message)
	for p := range next {
		if partOf(p) {
			t.Errorf("%q: is part of the message", p)
		}
	}
	if !partOf(keys.Partition(message[5:])) {
		t.Error("a part of the message is not found to be one")
	}
}

func FuzzRoundTrips(f *testing.F) {
	for _, seed := range []string{"", "a:b:c:d", "a.b:*:>:d", "\x00\xff\r\n:é:%41:x y", "ａ:\u0085:\ufffd:\ufffe"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token := keys.EncodeToken(s)
		if back, err := keys.DecodeToken(token); err != nil || back != s {
			t.Fatalf("token %q came back as %q, %v", s, back, err)
		}
		if strings.ContainsAny(token, ".*> \r\n\x00") {
			t.Fatalf("token %q of %q is not one token", token, s)
		}
		if back, err := keys.DecodeText(keys.EncodeText(s)); err != nil || back != s {
			t.Fatalf("text %q came back as %q, %v", s, back, err)
		}
		_, _ = keys.DecodeToken(s)
		_, _ = keys.DecodeText(s)
		_, _ = keys.ParseNamespaces(s)

		key, err := keys.Parse(s)
		if err != nil {
			return
		}
		if key.String() != s {
			t.Fatalf("key %q came back as %q", s, key)
		}
		app, module, typ, err := keys.ParseSubject(key.Subject("p", keys.Retry), "p", keys.Retry)
		if err != nil || app != key.App || module != key.Module || typ != key.Type {
			t.Fatalf("subject of %q came back as %q %q %q, %v", s, app, module, typ, err)
		}
		n := keys.Namespace{App: key.App, Module: key.Module, Type: key.Type}
		if again, err := keys.ParseNamespace(n.String()); err != nil || again != n || !again.Match(key) {
			t.Fatalf("namespace of %q came back as %q, %v", s, again, err)
		}
	})
}

func FuzzEventIDsDiffer(f *testing.F) {
	f.Add("a:b:c:d", int64(1), 1, "a:b:c:d", int64(1), 2)
	f.Add("a:b:c:d@1.1", int64(2), 1, "a:b:c:d", int64(1), 1)
	f.Add("a:b:c: ", int64(1), 1, "a:b:c:%20", int64(1), 1)
	f.Add(strings.Repeat("d", 600), int64(1), 1, strings.Repeat("d", 601), int64(1), 1)
	f.Fuzz(func(t *testing.T, key1 string, due1 int64, attempt1 int, key2 string, due2 int64, attempt2 int) {
		id1, id2 := keys.EventID(key1, due1, attempt1), keys.EventID(key2, due2, attempt2)
		same := key1 == key2 && due1 == due2 && attempt1 == attempt2
		if (id1 == id2) != same {
			t.Fatalf("%q and %q for firings that are the same: %v", id1, id2, same)
		}
		for _, c := range []byte(id1) {
			if c < '!' || c > '~' {
				t.Fatalf("id %q holds the byte %q", id1, c)
			}
		}
		if len(id1) > keys.MaxEventIDBytes {
			t.Fatalf("id of %d bytes", len(id1))
		}
	})
}

// No two namespaces of Apart overlap, and they cover their sources, in any order.
func TestApartNamespacesDoNotOverlap(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a:b:c,a:b,a":            "a",
		"a:b:c,d,a:b":            "a:b,d",
		"a:*:c,a:b":              "a",
		"a:b:c,a:*:c,a:b,*:b":    "*",
		"a:b:c,a:*:c,b:x:y":      "a:*:c,b:x:y",
		"b:x,a,*":                "*",
		"pay:order,pay:*:x,shop": "pay,shop",
	} {
		var all keys.Namespaces
		for part := range strings.SplitSeq(text, ",") {
			n, err := keys.ParseNamespace(part)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, n)
		}
		if got := all.Apart().String(); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	part := rapid.SampledFrom([]string{"", "a", "b", "c"})
	rapid.Check(t, func(t *rapid.T) {
		all := keys.Namespaces(rapid.SliceOf(rapid.Custom(func(t *rapid.T) keys.Namespace {
			return keys.Namespace{App: part.Draw(t, "app"), Module: part.Draw(t, "module"), Type: part.Draw(t, "type")}
		})).Draw(t, "namespaces"))
		apart := all.Apart()
		for i, n := range apart {
			for _, m := range apart[i+1:] {
				if _, ok := n.Overlap(m); ok {
					t.Fatalf("%s and %s of %s overlap", n, m, apart)
				}
			}
		}
		for _, n := range all {
			if !apart.Cover(n) {
				t.Fatalf("%s does not cover %s", apart, n)
			}
		}
		slices.Reverse(all)
		if again := all.Apart(); !slices.Equal(again, apart) {
			t.Fatalf("%s the other way round, not %s", again, apart)
		}
	})
}

// A namespace is read from the subjects that consumers of it have.
func TestParseFilter(t *testing.T) {
	t.Parallel()
	for subject, want := range map[string]string{
		"timers.fired.>": "*", "timers.fired.*.*.*": "*", "timers.fired.shop.>": "shop",
		"timers.fired.shop.order.*": "shop:order",
		"timers.fired.shop.*.a%2Eb": "shop:*:a.b",
		"timers.fired.shop":         "", "timers.fired.shop.order": "", "timers.fired.a.b.c.d": "",
		"timers.fired.a..c": "", "timers.fired.a.b.%2": "",
		"timers.dead.shop.>": "", "timers.fired": "", "": "",
	} {
		n, ok := keys.ParseFilter(subject, "timers", keys.Fired)
		if ok != (want != "") || ok && n.String() != want {
			t.Errorf("%q: %v, %t; want %q", subject, n, ok, want)
		}
	}
}

// Version 85ce861 wrote quotes, brackets and the like as they are; its stored values stay valid.
func TestReadNamespace(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]keys.Namespace{
		`"shop":'a'`:  {App: `"shop"`, Module: "'a'"},
		"[a]:(b):<c>": {App: "[a]", Module: "(b)", Type: "<c>"},
		"a|b:$x:\\":   {App: "a|b", Module: "$x", Type: "\\"},
		"a%3Bb:%20":   {App: "a;b", Module: " "},
		"a;b c":       {App: "a;b c"}, // from a file of endpoints
	} {
		n, err := keys.ReadNamespace(text)
		if err != nil || n != want {
			t.Errorf("%s: %+v, %v; want %+v", text, n, err, want)
		}
		if again, err := keys.ParseNamespace(n.String()); err != nil || again != n {
			t.Errorf("%s: written as %s, which is %+v, %v", text, n, again, err)
		}
	}
	for _, text := range []string{"", "a:", "a:b:c:d", "a*"} {
		if n, err := keys.ReadNamespace(text); err == nil {
			t.Errorf("%q: taken for %s", text, n)
		}
	}
}
