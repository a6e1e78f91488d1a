package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

func TestFirstRuleThatMatchesCounts(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseLimits(" shop:otp=30s drop; pay=5m ;; pay:slow=1h; shop:%3B=1500us DROP; *=0 ")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := rules.String(),
		"shop:otp=30s drop; pay=5m0s; pay:slow=1h0m0s; shop:%3B=2ms drop; *=0s"; got != want {
		t.Errorf("the rules are %q, want %q", got, want)
	}
	again, err := policy.ParseLimits(rules.String())
	if err != nil || again.String() != rules.String() {
		t.Errorf("their text is read as %v, %v", again, err)
	}
	for key, want := range map[string]policy.Limit{
		"shop:otp:sms:1":   {Given: true, Most: 30 * time.Second, Drop: true},
		"shop:otpx:sms:1":  {Given: true},
		"pay:slow:order:1": {Given: true, Most: 5 * time.Minute},
		"shop:;:a:1":       {Given: true, Most: 2 * time.Millisecond, Drop: true},
		"other:a:b:1":      {Given: true},
	} {
		k, err := keys.Parse(key)
		if err != nil {
			t.Fatal(err)
		}
		if got := rules.For(k); got != want {
			t.Errorf("%s has the limit %+v, want %+v", key, got, want)
		}
	}
	none, err := policy.ParseLimits(" ; ")
	if err != nil || len(none) != 0 || none.For(keys.Key{App: "a"}) != (policy.Limit{}) {
		t.Errorf("an empty list has %v, %v", none, err)
	}
}

func TestEveryFaultOfTheRulesIsTold(t *testing.T) {
	t.Parallel()
	_, err := policy.ParseLimits(
		"shop; a:b:c:d=5m; pay=; pay=5; *=5m drip; x=-1s; y=999us; z=87601h; w=5m drop drop; ok=5m; v*=never")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`"shop": want namespace=duration`, `namespace "a:b:c:d"`, `"pay=": want a duration`, `"pay=5": want`,
		`"*=5m drip": want`,
		`"x=-1s": want`, `"y=999us": want`, `"z=87601h": want`, `"w=5m drop drop": want`, `namespace "v*"`,
		`"v*=never": want`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "ok=5m") {
		t.Errorf("%v\nblames a right part", err)
	}
}

func TestLimitIsExceededAboveIt(t *testing.T) {
	t.Parallel()
	l := policy.Limit{Given: true, Most: time.Second}
	if l.Exceeded(time.Second) || !l.Exceeded(1001*time.Millisecond) ||
		(policy.Limit{Given: true}).Exceeded(time.Hour) {
		t.Error("1s: not at 1s, but at 1.001s; 0: never")
	}
}
