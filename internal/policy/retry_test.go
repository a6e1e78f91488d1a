package policy_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

func parsePolicies(t *testing.T, s string) policy.Rules[policy.Retry] {
	t.Helper()
	p, err := policy.ParseRetries(s)
	if err != nil {
		t.Fatalf("ParseRetries(%q): %v", s, err)
	}
	return p
}

func key(t *testing.T, s string) keys.Key {
	t.Helper()
	k, err := keys.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestFirstMatchingPolicyCounts(t *testing.T) {
	t.Parallel()
	p := parsePolicies(t, "app1:trans:notice=wechatpay; shop=10s,30s,2m; shop:a=1s; app1:trans=adyen;")
	for k, want := range map[string]string{
		"app1:trans:notice:1": "wechatpay",
		"app1:trans:other:1":  "adyen",
		"shop:b:c:1":          "10s,30s,2m",
		"shop:a:c:1":          "10s,30s,2m",
		"app1:x:notice:1":     "exp(10s,2,1h,12)~10%",
		"other:x:y:1":         "exp(10s,2,1h,12)~10%",
	} {
		if got := p.For(key(t, k)).String(); got != want {
			t.Errorf("policy of %s is %s, want %s", k, got, want)
		}
	}
}

func TestOwnCatchAllReplacesTheDefault(t *testing.T) {
	t.Parallel()
	p := parsePolicies(t, "*=5s;shop=1s")
	if got := p.For(key(t, "shop:a:b:c")).String(); got != "5s" {
		t.Errorf("policy is %s, want 5s", got)
	}
	if got := p.String(); got != "*=5s; shop=1s" {
		t.Errorf("policies are %s", got)
	}
}

func TestPolicyDelays(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"wechatpay":              "15s 15s 30s 3m 10m 20m 30m 30m 30m 1h 3h 3h 3h 6h 6h",
		"alipay":                 "2m 10m 10m 1h 2h 6h 15h",
		"adyen":                  "2m 5m 10m 15m 30m 1h 2h 4h 8h",
		"standard-webhooks":      "5s 5m 30m 2h 5h 10h 14h 20h 24h",
		"10s,30s,2m":             "10s 30s 2m",
		" 10s , 1h30m ":          "10s 1h30m",
		"500ms":                  "500ms",
		"exp(10s,2,1h,12)":       "10s 20s 40s 1m20s 2m40s 5m20s 10m40s 21m20s 42m40s 1h 1h 1h",
		"exp( 1s , 1.5 , 5s, 5)": "1s 1.5s 2.25s 3.375s 5s",
		"exp(1s,1,1s,3)~5%":      "1s 1s 1s",
		"exp(1s,1,1s,0)":         "",
		"87600h":                 "87600h",
		"1ms":                    "1ms",
		"1.6ms":                  "2ms",
		"exp(1s,1000,87600h,9)":  "1s 16m40s 277h46m40s 87600h 87600h 87600h 87600h 87600h 87600h",
	} {
		retry := parsePolicies(t, "*="+s).For(keys.Key{})
		var delays []time.Duration
		for text := range strings.FieldsSeq(want) {
			d, err := time.ParseDuration(text)
			if err != nil {
				t.Fatal(err)
			}
			delays = append(delays, d)
		}
		if got := retry.Delays(); !slices.Equal(got, delays) {
			t.Errorf("%s: delays are %v, want %s", s, got, want)
		}
		if got := retry.MaxAttempts(); got != len(delays)+1 {
			t.Errorf("%s: at most %d attempts, want %d", s, got, len(delays)+1)
		}
		for i, want := range retry.Delays() {
			if got, ok := retry.Delay(i+1, "id"); !ok || retry.Jitter() == 0 && got != want {
				t.Errorf("%s: delay after attempt %d is %v, %t, want %v", s, i+1, got, ok, want)
			}
		}
		for _, attempt := range []int{math.MinInt, -1, 0, retry.MaxAttempts(), math.MaxInt} {
			if d, ok := retry.Delay(attempt, "id"); ok {
				t.Errorf("%s: delay after attempt %d is %v, want none", s, attempt, d)
			}
		}
	}
}

func TestZeroPolicyNeverRetries(t *testing.T) {
	t.Parallel()
	retry := policy.Rules[policy.Retry](nil).For(key(t, "a:b:c:d"))
	if d, ok := retry.Delay(1, "id"); ok || retry.MaxAttempts() != 1 {
		t.Errorf("got delay %v and %d attempts", d, retry.MaxAttempts())
	}
}

func TestPoliciesPrintAsTheyAreRead(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                                   "*=exp(10s,2,1h,12)~10%",
		" ; ":                                "*=exp(10s,2,1h,12)~10%",
		"*=wechatpay":                        "*=wechatpay",
		"*:*:*=wechatpay":                    "*=wechatpay",
		"*=standard-webhooks":                "*=standard-webhooks~10%",
		"*=standard-webhooks~0%":             "*=standard-webhooks~0%",
		"*=wechatpay ~ 2.5%":                 "*=wechatpay~2.5%",
		"a:*:c = 60s,120m ,36h":              "a:*:c=1m,2h,36h; *=exp(10s,2,1h,12)~10%",
		"*=exp(1000ms,2.50,60m,3)~100%":      "*=exp(1s,2.5,1h,3)~100%",
		"a%3Bb:x%3Dy=1s;*=2s":                "a%3Bb:x%3Dy=1s; *=2s",
		"shop=1s;\n\tapp1:trans=2s;\n *=3s;": "shop=1s; app1:trans=2s; *=3s",
	} {
		p := parsePolicies(t, s)
		if got := p.String(); got != want {
			t.Errorf("%q prints as %q, want %q", s, got, want)
		}
		if again := parsePolicies(t, p.String()).String(); again != want {
			t.Errorf("%q prints as %q the second time, want %q", s, again, want)
		}
	}
}

func TestEveryPolicyFaultIsNamed(t *testing.T) {
	t.Parallel()
	const bad = "shop; a::b=1s;  x=10x,5s, -1s ; y=exp(1s,2,1h); z=wechat~5; *=exp(0s, " +
		"0.5,11y,10001)~101%;q=;r=exp(1m,2,30s,3);s=1s,,2s; a:b:c:d=1s"
	want := []string{
		`column 1: "shop": want namespace=policy`,
		`column 7: "a::b": part 2 is empty; write * for any`,
		`column 19: "10x": want a delay such as 500ms, 10s, 2m or 1h30m`,
		`column 27: "-1s": want a delay from 1ms to 87600h`,
		`column 35: "exp(1s,2,1h)": exp has 3 arguments, want four: exp(first,factor,max,retries)`,
		`column 51: "wechat": want the name of a preset (wechatpay, alipay, adyen, standard-webhooks), a list of delays such as 10s,30s,2m, or exp(first,factor,max,retries)`,
		`column 58: "5": want a jitter from 0% to 100%, such as ~10%`,
		`column 67: "0s": want a delay from 1ms to 87600h`,
		`column 71: "0.5": want a factor from 1 to 1000`,
		`column 75: "11y": want a delay such as 500ms, 10s, 2m or 1h30m`,
		`column 79: "10001": want a number of retries from 0 to 10000`,
		`column 86: "101%": want a jitter from 0% to 100%, such as ~10%`,
		`column 93: "": want the name of a preset`,
		`column 105: "30s": the longest delay is shorter than the first one, 1m`,
		`column 117: "": want a delay such as`,
		`column 122: "a:b:c:d": want app[:module[:type]], at most three parts`,
	}
	_, err := policy.ParseRetries(bad)
	var all interface{ Unwrap() []error }
	if !errors.As(err, &all) {
		t.Fatalf("error is %v, want a list of faults", err)
	}
	faults := all.Unwrap()
	for i, f := range faults {
		if i >= len(want) || !strings.HasPrefix(f.Error(), want[i]) {
			t.Errorf("unexpected fault %d: %v", i, f)
		}
		var column int
		var text string
		if n, err := fmt.Sscanf(f.Error(), "column %d: %q:", &column, &text); n != 2 || err != nil ||
			!strings.HasPrefix(bad[column-1:], text) {
			t.Errorf("fault %v does not tell where it is", f)
		}
	}
	if len(faults) != len(want) {
		t.Errorf("%d faults, want %d", len(faults), len(want))
	}
}

func TestPolicyBounds(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"*=" + strings.Repeat("1s,", policy.MaxRetries) + "1s",
		"*=87601h", "*=999us", "*=exp(1s,NaN,1h,3)", "*=exp(1s,Inf,1h,3)", "*=exp(1s,2,1h,-1)", "*=1s~NaN%", "*=1s~",
		"*=1s~10", "*=exp(1s,2,1h,3", "*=exp 1s", "=1s",
	} {
		if p, err := policy.ParseRetries(s); err == nil {
			t.Errorf("ParseRetries(%.40q) = %.40v, want an error", s, p)
		} else if len(err.Error()) > 400 {
			t.Errorf("ParseRetries(%.40q): the error has %d bytes", s, len(err.Error()))
		}
	}
	longest := parsePolicies(t, "*="+strings.Repeat("1s,", policy.MaxRetries-1)+"1s").For(keys.Key{})
	if got := longest.MaxAttempts(); got != policy.MaxRetries+1 {
		t.Errorf("at most %d attempts, want %d", got, policy.MaxRetries+1)
	}
}

func TestJitterLengthensByUpToItsShare(t *testing.T) {
	t.Parallel()
	retry := parsePolicies(t, "*=100s~20%").For(keys.Key{})
	var low, high int
	for i := range 1000 {
		id := fmt.Sprintf("a:b:c:%d@1763629200000.1", i)
		d, ok := retry.Delay(1, id)
		if !ok || d < 100*time.Second || d > 120*time.Second || d%time.Millisecond != 0 {
			t.Fatalf("delay of %s is %v, want 100 s to 120 s", id, d)
		}
		if again, _ := retry.Delay(1, id); again != d {
			t.Fatalf("delay of %s is %v, then %v", id, d, again)
		}
		switch {
		case d < 105*time.Second:
			low++
		case d > 115*time.Second:
			high++
		}
	}
	if low < 200 || low > 300 || high < 200 || high > 300 {
		t.Errorf("of 1000 delays %d are in the first quarter and %d in the last", low, high)
	}
}

func TestPoliciesRoundTrip(t *testing.T) {
	t.Parallel()
	part := rapid.OneOf(rapid.Just(""), rapid.StringN(1, 20, policy.MaxFactor).Filter(func(s string) bool {
		return !strings.Contains(s, ":") && len(s) <= keys.MaxPartBytes
	}))
	delay := rapid.Custom(func(t *rapid.T) string {
		return (time.Duration(rapid.Int64Range(1, policy.Longest.Milliseconds()).Draw(t,
			"ms")) * time.Millisecond).String()
	})
	retry := rapid.OneOf(
		rapid.SampledFrom([]string{"wechatpay", "alipay", "adyen", "standard-webhooks"}),
		rapid.Custom(func(t *rapid.T) string {
			return strings.Join(rapid.SliceOfN(delay, 1, 5).Draw(t, "delays"),
				",")
		}),
		rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("exp(1ms,%g,%s,%d)", rapid.Float64Range(1, 1000).Draw(t, "factor"), delay.Draw(t, "max"),
				rapid.IntRange(0, 50).Draw(t, "retries"))
		}),
	)
	rapid.Check(t, func(t *rapid.T) {
		var entries []string
		for range rapid.IntRange(0, 4).Draw(t, "entries") {
			ns := keys.Namespace{App: part.Draw(t, "app"), Module: part.Draw(t, "module"), Type: part.Draw(t, "type")}
			entry := ns.String() + "=" + retry.Draw(t, "retry")
			if rapid.Bool().Draw(t, "jittered") {
				entry += fmt.Sprintf("~%g%%", rapid.Float64Range(0, 100).Draw(t, "jitter"))
			}
			entries = append(entries, entry)
		}
		p, err := policy.ParseRetries(strings.Join(entries, ";"))
		if err != nil {
			t.Fatalf("ParseRetries(%q): %v", entries, err)
		}
		again, err := policy.ParseRetries(p.String())
		if err != nil {
			t.Fatalf("ParseRetries(%q): %v", p, err)
		}
		if again.String() != p.String() || len(again) != len(p) {
			t.Fatalf("%q prints as %q", p, again)
		}
		for i := range p {
			if again[i].Namespace != p[i].Namespace || !slices.Equal(again[i].Is.Delays(), p[i].Is.Delays()) {
				t.Fatalf("%v became %v", p[i], again[i])
			}
		}
	})
}

func FuzzParsePolicies(f *testing.F) {
	f.Add("app1:trans:notice=wechatpay; shop=10s,30s,2m; *=exp(10s,2,1h,12)~10%")
	f.Add("a=exp(,,,)~%;=;~;b=1s~,c")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := policy.ParseRetries(s)
		if err != nil {
			var all interface{ Unwrap() []error }
			if !errors.As(err, &all) {
				t.Fatalf("ParseRetries(%q): %v is not a list of faults", s, err)
			}
			for _, fault := range all.Unwrap() {
				var column int
				if n, _ := fmt.Sscanf(fault.Error(), "column %d:", &column); n != 1 || column < 1 || column > len(s)+1 {
					t.Fatalf("ParseRetries(%q): fault %v tells no place", s, fault)
				}
			}
			return
		}
		again, err := policy.ParseRetries(p.String())
		if err != nil || again.String() != p.String() {
			t.Fatalf("%q prints as %q, which reads as %q, %v", s, p, again, err)
		}
		for _, d := range p.For(keys.Key{App: "a", Module: "b", Type: "c", ID: "d"}).Delays() {
			if d < policy.MinDelay || d > policy.Longest {
				t.Fatalf("%q has the delay %v", s, d)
			}
		}
	})
}
