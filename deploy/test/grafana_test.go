package deploytest

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard has the tested parts of deploy/grafana/timerd.json.
type dashboard struct {
	UID, Title    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
}

type panel struct {
	ID          int
	Type, Title string
	GridPos     struct{ H, W, X, Y int }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct {
		RefID, Expr, LegendFormat string
		Datasource                struct{ Type, UID string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, "../grafana/timerd.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// Prometheus accepts every query, and timerd has their metrics.
func TestGrafanaQueries(t *testing.T) {
	d := readDashboard(t)
	// What Grafana puts in the place of its variables.
	grafana := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$namespace", ".*")
	var queries []string
	for _, p := range d.Panels {
		var refs []string
		for _, target := range p.Targets {
			query := grafana.Replace(target.Expr)
			queries = append(queries, query)
			known(t, p.Title, query)
			if strings.Contains(query, "$") || target.Datasource.UID != "${datasource}" ||
				slices.Contains(refs, target.RefID) {
				t.Errorf("%s: query %s of the data source %s: %s", p.Title, target.RefID, target.Datasource.UID, query)
			}
			refs = append(refs, target.RefID)
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if label[1] != "instance" && !regexp.MustCompile(`\bby \([a-z, ]*\b`+label[1]+`\b`).MatchString(query) {
					t.Errorf("%s: the legend shows %s, and the query drops it: %s", p.Title, label[1], query)
				}
			}
		}
	}
	for _, variable := range d.Templating.List {
		if variable.Type == "query" {
			known(t, "$"+variable.Name, variable.Definition)
		}
	}
	checkQueries(t, queries)
}

// The dashboard shows a platform team's concerns: each of these metrics is in a panel.
func TestGrafanaShows(t *testing.T) {
	var all strings.Builder
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			all.WriteString(target.Expr + "\n")
		}
	}
	for name := range strings.FieldsSeq(`timerd_lateness_seconds_bucket timerd_fired_total timerd_pending_timers timerd_due_timers timerd_firing_timers
		timerd_held_timers timerd_publish_failures_total timerd_gaps_total timerd_dead_letters timerd_dead_letters_total timerd_retries_total
		timerd_ready timerd_instances_alive timerd_set_aside_timers timerd_late_total timerd_deliveries_total timerd_circuit_open`) {
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(all.String()) {
			t.Errorf("no panel shows %s", name)
		}
	}
}

// Panels have ids of their own and do not lie on each other, as Grafana would otherwise move them about.
func TestGrafanaLayout(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion == 0 {
		t.Errorf("uid %q, title %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	ids := map[int]string{}
	taken := map[[2]int]string{}
	for _, p := range d.Panels {
		if other, ok := ids[p.ID]; ok || p.ID == 0 {
			t.Errorf("%s and %s have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		if p.Type != "row" && (len(p.Targets) == 0 || p.FieldConfig.Defaults.Unit == "") {
			t.Errorf("%s has %d queries and the unit %q", p.Title, len(p.Targets), p.FieldConfig.Defaults.Unit)
		}
		if p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("%s ends at column %d of 24", p.Title, p.GridPos.X+p.GridPos.W)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[at]; ok {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
	}
}
