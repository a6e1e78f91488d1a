package admin

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/timerd-io/timerd/internal/policy"
)

// entry is a file with one entry that has a key, from line 2 on.
func entry(fields string) string {
	return "repeat:\n  - key: a:b:c:d\n    " + strings.ReplaceAll(fields, "\n", "\n    ") + "\n"
}

func TestParseRepetitions(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{entry("every: 5m"), `every 5m0s ""`},
		{entry("every: 1d12h\npayload: text"), `every 36h0m0s "text"`},
		{entry("cron: 0 9 * * 1-5\ntz: Europe/Berlin"), `cron 0 9 * * 1-5 Europe/Berlin ""`},
		{entry("tz: Asia/Kathmandu\ncron: '@daily'"), `cron @daily Asia/Kathmandu ""`},
		{entry("cron: '*/5 * * * *'"), `cron */5 * * * * UTC ""`},
		{entry("every: 100ms\npayload: ''"), `every 100ms ""`},
		{entry("every: 1s\npayload: '42'"), `every 1s "42"`},
		{entry("every: 1s\npayload: 42"), `every 1s "42"`},
		{entry("every: 1s\npayload: 2026-01-01"), `every 1s "2026-01-01"`},
		{entry("every: 1s\npayload: !!binary |\n  AAH/\n  AAE="), `every 1s "\x00\x01\xff\x00\x01"`},
		{entry("every: 1s\npayload: |\n  two\n  lines"), `every 1s "two\nlines\n"`},
		{entry("every: 1s\npayload: {z: 1.10, a: [yes, true, ~, '7', <ü>], 2026-01-01: 1e3, 5: -0}"),
			`every 1s "{\"z\":1.10,\"a\":[\"yes\",true,null,\"7\",\"<ü>\"],\"2026-01-01\":1e3,\"5\":-0}"`},
		{entry("every: 1s\npayload: []"), `every 1s "[]"`},
		{entry("every: 1s\ncatchup: 1d\nlate: 90s\ndrop_late: true\ntimes: 3"),
			`every 1s "" times 3 catchup 24h0m0s late 1m30s drop true`},
		{entry("every: 1s\ncatchup: 0s\nlate: 0\ndrop_late: false"), `every 1s "" late 0s drop false`},
		{entry("every: 1s\nfrom: 2026-11-20T10:00:00+01:00\nuntil: '@1795165200000'"),
			`every 1s "" from 2026-11-20T09:00:00Z until 2026-11-20T09:00:00Z`},
		{"repeat:\n- &x {key: 'a:b:c:d', every: 1s, payload: &p {x: 1}}\n- {key: 'a:b:c:e', every: 1s, payload: [*p, " +
			"*p]}", `every 1s "{\"x\":1}"|every 1s "[{\"x\":1},{\"x\":1}]"`},
		{"# none\nrepeat: []\n", ""},
	} {
		wanted, faults := ParseRepetitions([]byte(test.text))
		if len(faults) > 0 {
			t.Errorf("%s: %v", test.text, faults)
			continue
		}
		var got []string
		for _, w := range wanted {
			text := fmt.Sprintf("%s %q", w.Spec, w.Payload)
			if !w.From.IsZero() {
				text += " from " + w.From.Format(time.RFC3339)
			}
			if !w.Until.IsZero() {
				text += " until " + w.Until.Format(time.RFC3339)
			}
			if w.Times > 0 {
				text += fmt.Sprint(" times ", w.Times)
			}
			if w.CatchUp > 0 {
				text += fmt.Sprint(" catchup ", w.CatchUp)
			}
			if w.Late.Given {
				text += fmt.Sprintf(" late %v drop %v", w.Late.Most, w.Late.Drop)
			}
			got = append(got, text)
		}
		if got := strings.Join(got, "|"); got != test.want {
			t.Errorf("%s:\n%s\nwant\n%s", test.text, got, test.want)
		}
	}
	wanted, _ := ParseRepetitions([]byte(entry("every: 1s\nlate: 0")))
	if l := wanted[0].Late; l != (policy.Limit{Given: true}) {
		t.Errorf("no limit is %+v", l)
	}
}

// A file is read as editors of Windows save it.
func TestParseRepetitionsOfOtherEditors(t *testing.T) {
	t.Parallel()
	text := "repeat:\r\n- key: a:b:c:d\r\n  every: 5m\r\n"
	wide := utf16.Encode([]rune("\ufeff" + text))
	var little, big []byte
	for _, unit := range wide {
		little, big = binary.LittleEndian.AppendUint16(little, unit), binary.BigEndian.AppendUint16(big, unit)
	}
	for _, file := range [][]byte{[]byte(text), []byte("\ufeff" + text), little, big} {
		if got, faults := ParseRepetitions(file); len(faults) > 0 || len(got) != 1 {
			t.Errorf("%.10q: %v, %v", file, got, faults)
		}
	}
}

// Each fault is reported, with its line and the allowed values.
func TestRepetitionFaults(t *testing.T) {
	deep := strings.Repeat("[", 1200) + strings.Repeat("]", 1200)
	wide := "&a [" + strings.Repeat("x", 1000) + "]"
	for i := range 9 {
		wide = fmt.Sprintf("&%c [%s%s]", 'b'+i, wide, strings.Repeat(fmt.Sprintf(",*%c", 'a'+i), 9))
	}
	for _, test := range []struct{ text, want string }{
		{"", "not YAML: no documents in stream"},
		{"a: 1\n---\nb: 2", "not YAML: expected single document, found multiple"},
		{"- 1", "line 1: want a list repeat:, got a list"},
		{"\nfoo: 1\n", `line 2: "foo": want repeat alone|line 2: want a list repeat:`},
		{"repeat:\n", "line 1: repeat: want a list, [] for an empty one, got nothing"},
		{"repeat: []\nrepeat: []", "line 2: repeat: occurs twice"},
		{"repeat:\n- x\n- []",
			`line 2: want an entry with some of key, every, cron, tz, payload, from, until, times, catchup, late, drop_late, unless, if; got "x"|` +
				"line 3: want an entry with some of key, every, cron, tz, payload, from, until, times, catchup, " +
				"late, drop_late, unless, if; got a list"},
		{"repeat:\n- {}", "line 2: key is missing|line 2: want either every or cron"},
		{"repeat:\n- key: a:b:c:d\n  cron: * * * * *",
			"line 3: not YAML: did not find expected alphabetic or numeric character; put quotes around a value that " +
				"begins with * or @"},
		{"repeat:\n- cron: @daily",
			"line 2: not YAML: found character that cannot start any token; put quotes around a value that begins " +
				"with * or @"},
		{"repeat: [1", "line 2: not YAML: did not find expected ',' or ']'"},
		{entry("every: soon"), `line 3: every: "soon": want a duration such as 90s, 1h30m or 30d`},
		{entry("every: 300"), `line 3: every: "300": want a duration such as 90s, 1h30m or 30d`},
		{entry("every: 50ms"), "line 3: every: interval 50ms: want from 100ms to 87600h"},
		{entry("every: [5m]"), "line 3: every: want one value, got a list"},
		{entry("every: 5m\ncron: '@daily'"), "line 2: want either every or cron"},
		{entry("every: 5m\nevery: 6m"), "line 4: every: line 3 has it too"},
		{entry("every: 5m\ntz: UTC"), "line 4: tz: goes with cron"},
		{entry("cron: 60 9 * * *\ntz: Europe/Berln"),
			`line 3: cron: minute "60": want * or numbers from 0 to 59|line 4: tz: zone "Europe/Berln" is not in the time zone database`},
		{entry("every: 5m\nkye: 1"),
			`line 4: "kye": unknown field: want key, every, cron, tz, payload, from, until, times, catchup, late, drop_late`},
		{entry("every: 5m\n<<: {times: 1}"), `line 4: "<<": unknown field: want key`},
		{entry("every: 5m\nfrom: 1h"),
			`line 4: from: "1h": want an instant such as 2026-11-20T09:00:00Z, or "@unix-ms"`},
		{entry("every: 5m\nfrom: 2026-11-20"), `line 4: from: "2026-11-20": want an instant`},
		{entry("every: 5m\nuntil: '@-1'"), `line 4: until: "@-1": want an instant`},
		{entry("every: 5m\nfrom: 2027-11-20T00:00:00Z\nuntil: 2026-11-20T00:00:00Z"), "line 5: until: is before from"},
		{entry("every: 5m\nfrom: 2027-11-20T00:00:00Z\nuntil: soon"), `line 5: until: "soon": want an instant`},
		{entry("every: 5m\n\"\\e[2J\": 1"), `line 4: "\x1b[2J": unknown field`},
		{entry("every: 5m\ntimes: 0"),
			`line 4: times: "0": want a number from 1 to 2147483647, or no times for no end`},
		{entry("every: 5m\ntimes: 1.5"), `line 4: times: "1.5": want a number`},
		{entry("every: 5m\ncatchup: -1s"),
			`line 4: catchup: "-1s": want a duration of whole milliseconds from 0, for nothing, to 10 years`},
		{entry("every: 5m\ncatchup: 1us"), `line 4: catchup: "1us": want a duration of whole milliseconds`},
		{entry("every: 5m\nlate: 4000d"),
			`line 4: late: "4000d": want a duration of whole milliseconds from 0, for no limit, to 10 years`},
		{entry("every: 5m\ndrop_late: true"), "line 4: drop_late: goes with late"},
		{entry("every: 5m\nlate: 1s\ndrop_late: yes"), `line 5: drop_late: "yes": want true or false`},
		{entry("every: 5m\npayload:"),
			"line 4: payload: want a text, '' for an empty one, or a value for JSON; got nothing"},
		{entry("every: 5m\npayload: {a: 0x1f}"),
			`line 4: payload: line 4: "0x1f" is not valid JSON: change it, or put quotes around a text`},
		{entry("every: 5m\npayload: .inf"), `line 4: payload: line 4: ".inf" is not valid JSON`},
		{entry("every: 5m\npayload:\n  - True"), `line 4: payload: line 5: "True" is not valid JSON`},
		{entry("every: 5m\npayload: {a: 1, a: 2}"), `line 4: payload: line 4: "a" occurs twice`},
		{entry("every: 5m\npayload: {[a]: 1}"),
			"line 4: payload: line 4: a list cannot be the name of a member in JSON"},
		{entry("every: 5m\npayload: {<<: {a: 1}}"),
			`line 4: payload: line 4: "<<" cannot be the name of a member in JSON`},
		{entry("every: 5m\npayload: [!!binary AAH/]"), "line 4: payload: line 4: JSON has no !!binary"},
		{entry("every: 5m\npayload: !!binary '%'"), "line 4: payload: !!binary: illegal base64 data"},
		{entry("every: 5m\npayload: &x [*x]"),
			"line 4: payload: its JSON has over 8388608 bytes, or is nested over 1000 deep"},
		{entry("every: 5m\npayload: " + deep),
			"line 4: payload: its JSON has over 8388608 bytes, or is nested over 1000 deep"},
		{entry("every: 5m\npayload: " + wide),
			"line 4: payload: its JSON has over 8388608 bytes, or is nested over 1000 deep"},
		{"repeat:\n- {key: three:part:key, every: 5m}", `line 2: key: "three:part:key": `},
		{"repeat:\n- {key: 'a:b:c:d', every: 5m}\n- {key: 'a:b:c:e', every: 5m}\n- {key: 'a:b:c:d', every: 5m}",
			`line 4: key "a:b:c:d": line 2 has it too`},
	} {
		_, faults := ParseRepetitions([]byte(test.text))
		name := test.text[:min(len(test.text), 200)]
		want := strings.Split(test.want, "|")
		if len(faults) != len(want) {
			t.Errorf("%s: %v\nwant %q", name, faults, want)
			continue
		}
		for i, f := range faults {
			if !strings.HasPrefix(f.String(), want[i]) {
				t.Errorf("%s:\n%s\nwant\n%s", name, f, want[i])
			}
		}
	}
}

func FuzzParseRepetitions(f *testing.F) {
	f.Add(entry("cron: 0 9 * * 1-5\ntz: Europe/Berlin\npayload: {a: [1, x]}\nlate: 1s"))
	f.Add(entry("every: 5m\npayload: &x [*x]\ntimes: 3\nuntil: '@1'"))
	f.Fuzz(func(t *testing.T, text string) {
		wanted, faults := ParseRepetitions([]byte(text))
		if len(faults) > 0 {
			return
		}
		for _, w := range wanted {
			if w.Key == "" || w.Spec.String() == "" || w.Payload == nil || w.Line < 1 {
				t.Errorf("%q: %+v", text, w)
			}
			_, _, _ = w.next(time.Time{}, time.Now())
		}
	})
}
