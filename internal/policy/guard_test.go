package policy_test

import (
	"strings"
	"testing"

	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
)

func TestParseGuards(t *testing.T) {
	t.Parallel()
	rules, err := policy.ParseGuards(" shop:order:timeout = UNLESS shop:order:paid:%id;; pay=If pay:%%:%module:%type " +
		"unless pay:off; shop=if %app=%id; *=unless a ")
	if err != nil {
		t.Fatal(err)
	}
	const want = "shop:order:timeout=unless shop:order:paid:%id; pay=unless pay:off if pay:%%:%module:%type; " +
		"shop=if %app=%id; *=unless a"
	if got := rules.String(); got != want {
		t.Errorf("the rules are %q, want %q", got, want)
	}
	if again, err := policy.ParseGuards(want); err != nil || again.String() != want {
		t.Errorf("their text is read as %v, %v", again, err)
	}
	k, _ := keys.Parse("shop:cart:timeout:7")
	if got := rules.For(k); got != (policy.GuardRule{If: "%app=%id"}) {
		t.Errorf("the first rule for %s is %+v", k, got)
	}
	if none, err := policy.ParseGuards(" ; "); err != nil || len(none) != 0 {
		t.Errorf("an empty list has %v, %v", none, err)
	}
}

func TestFaultsOfGuards(t *testing.T) {
	t.Parallel()
	_, err := policy.ParseGuards("shop; a:b:c:d=if x; pay=; pay=unless; x=when y; y=if a if b; " +
		"z=unless %ids:%:%%:%Id; long=if " + strings.Repeat("x", 1025) + "; odd=if a unless; ok=unless %id%%")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`"shop": want namespace=unless KEY`, `namespace "a:b:c:d"`, `"pay=": want unless and a key`,
		`"pay=unless": want unless and a key`, `"x=when y": "when": want unless or if`,
		`"y=if a if b": if can be given once`, `unknown placeholder "%ids"`, `unknown placeholder "%": want %app`,
		`unknown placeholder "%"`, "want a key of 1 to 1,024 bytes", `"odd=if a unless": want unless and a key`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nlacks %s", err, want)
		}
	}
	if got := strings.Count(err.Error(), "unknown placeholder"); got != 3 || strings.Contains(err.Error(), "ok=") {
		t.Errorf("%v\nhas %d placeholders", err, got)
	}
}
