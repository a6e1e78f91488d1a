package deploytest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/yaml"
)

const rulesFile = "../prometheus/timerd.rules.yml"

// promtool runs promtool and fails if it finds fault.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v; `scripts/deps.sh promtool` installs it\n%s", strings.Join(args, " "), err, out)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// alerts returns the rules by the names of their alerts.
func alerts(t *testing.T) map[string]monitoring.Rule {
	t.Helper()
	var file monitoring.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict([]byte(read(t, rulesFile)), &file); err != nil {
		t.Fatal(err)
	}
	found := map[string]monitoring.Rule{}
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			found[rule.Alert] = rule
		}
	}
	return found
}

// metric finds the names of timerd's metrics in a query.
var metric = regexp.MustCompile(`\btimerd_[a-z_]+\b`)

// known fails where a query names a metric, or groups or selects by a label of it, that the reference does not have.
// The reference is held to the code by a test of its own.
func known(t *testing.T, where, query string) {
	t.Helper()
	reference := read(t, "../../docs/reference.md")
	for _, name := range metric.FindAllString(query, -1) {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		row := regexp.MustCompile("(?m)^\\|.*`(" + name + "|" + base + ")(\\{[a-z,]+\\})?`.*\\|").FindString(reference)
		if row == "" {
			t.Errorf("%s: docs/reference.md has no metric %s", where, name)
		}
	}
	labels := regexp.MustCompile(`\{[a-z,]+\}`).FindAllString(reference, -1)
	labels = append(labels, "job,instance,le,result") // of Prometheus, of histograms, of deliveries
	for _, used := range regexp.MustCompile(`\bby \(([a-z_, ]+)\)|[{,]([a-z_]+)=`).FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(used[1]+used[2], ",") {
			label = strings.TrimSpace(label)
			if !slices.ContainsFunc(labels, func(all string) bool {
				return slices.Contains(strings.Split(strings.Trim(all, "{}"), ","), label)
			}) {
				t.Errorf("%s: no metric has a label %s", where, label)
			}
		}
	}
}

// promtool takes the rules, and each fires when it is to and not else.
func TestRules(t *testing.T) {
	promtool(t, "check", "rules", rulesFile)
	promtool(t, "test", "rules", "../prometheus/timerd.rules_test.yml")
	tests := read(t, "../prometheus/timerd.rules_test.yml")
	for name, rule := range alerts(t) {
		known(t, name, rule.Expr.String())
		for _, kind := range []string{" fires\n", " is quiet\n"} {
			if !strings.Contains(tests, "- name: "+name+kind) {
				t.Errorf("timerd.rules_test.yml has no test %q", name+kind)
			}
		}
		if !slices.Contains([]string{"critical", "warning", "info"}, rule.Labels["severity"]) ||
			rule.Annotations["summary"] == "" {
			t.Errorf("%s: severity %q, summary %q", name, rule.Labels["severity"], rule.Annotations["summary"])
		}
	}
	for test := range strings.SplitSeq(tests, "  - name: ") {
		name, _, _ := strings.Cut(test, "\n")
		if strings.HasSuffix(name, " fires") && !strings.Contains(test, "- exp_labels:") {
			t.Errorf("the test %q expects no alert", name)
		}
	}
}

// Each alert has a row in runbook.md, and its link leads there.
func TestRulesAreDocumented(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| <a id="([a-z]+)"></a>(\w+) \|`)
	all := alerts(t)
	documented := map[string]bool{}
	for _, found := range row.FindAllStringSubmatch(read(t, "../../docs/runbook.md"), -1) {
		anchor, name := found[1], found[2]
		documented[name] = true
		want := "https://github.com/timerd-io/timerd/blob/main/docs/runbook.md#" + anchor
		if got := all[name].Annotations["runbook_url"]; got != want {
			t.Errorf("%s: the link is %s, the anchor %s", name, got, anchor)
		}
	}
	for name := range all {
		if !documented[name] {
			t.Errorf("runbook.md does not tell of %s", name)
		}
	}
	if len(documented) < 20 {
		t.Errorf("runbook.md has %d alerts", len(documented))
	}
}

// checkQueries has promtool parse queries: as rules that record them.
func checkQueries(t *testing.T, queries []string) {
	t.Helper()
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	type group struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	}
	g := group{Name: "queries"}
	for i, query := range queries {
		g.Rules = append(g.Rules, rule{"query:" + strings.Repeat("i", i+1), query})
	}
	text, err := yaml.Marshal(map[string][]group{"groups": {g}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}
