package apitest

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/timerd-io/timerd/docs/schemas"
	"github.com/timerd-io/timerd/keys"
)

// references returns the values of all members $ref below a node of a document.
func references(node any) (all []string) {
	switch node := node.(type) {
	case []any:
		for _, n := range node {
			all = append(all, references(n)...)
		}
	case map[string]any:
		for name, n := range node {
			if ref, is := n.(string); is && name == "$ref" {
				all = append(all, ref)
			}
			all = append(all, references(n)...)
		}
	}
	return all
}

// resolves reports whether a reference leads to a node of the document, or to a schema.
func resolves(document any, ref string) bool {
	path, here := strings.CutPrefix(ref, "#/")
	if !here {
		_, ok := schemas.Text(strings.TrimSuffix(ref, ".json"))
		return ok && strings.HasSuffix(ref, ".json")
	}
	for name := range strings.SplitSeq(path, "/") {
		members, _ := document.(map[string]any)
		node, found := members[name]
		if !found {
			return false
		}
		document = node
	}
	return true
}

// The AsyncAPI document has the subjects and streams of the code, an operation for each, and no dangling reference.
func TestAsyncAPIHasAllSubjects(t *testing.T) {
	t.Parallel()
	text, _ := schemas.Text("asyncapi")
	var whole any
	var doc struct {
		AsyncAPI string `yaml:"asyncapi"`
		Channels map[string]struct {
			Address, Title string
			Messages       map[string]any
		}
		Operations map[string]struct {
			Channel map[string]string
		}
	}
	if err := yaml.Unmarshal([]byte(text), &whole); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.AsyncAPI, "3.") {
		t.Errorf("version %q of AsyncAPI", doc.AsyncAPI)
	}
	names, key := keys.Names{}, keys.Key{App: "app", Module: "module", Type: "type", ID: "id"}
	streams := map[string]string{keys.Fired: names.FiredStream(), keys.Retry: names.RetryStream(),
		keys.Dead: names.DeadStream(), keys.Delivery: names.DeliveryStream(), keys.History: names.HistoryStream(),
		"operator": names.HistoryStream()}
	for kind, stream := range streams {
		c, want := doc.Channels[kind], names.Subject(key, kind)
		if kind == "operator" {
			want = names.OperatorSubject("kind")
		}
		if got := strings.NewReplacer("{", "", "}", "").Replace(c.Address); got != want {
			t.Errorf("the channel %s has the subject %q, the code %q", kind, got, want)
		}
		if !strings.Contains(c.Title+",", "Stream "+stream+",") || len(c.Messages) != 1 {
			t.Errorf("the channel %s has %d messages in %q, want one in the stream %s", kind, len(c.Messages), c.Title,
				stream)
		}
	}
	if got := slices.Sorted(maps.Keys(doc.Channels)); !slices.Equal(got, slices.Sorted(maps.Keys(streams))) {
		t.Errorf("channels %v", got)
	}
	used := map[string]bool{}
	for _, o := range doc.Operations {
		used[strings.TrimPrefix(o.Channel["$ref"], "#/channels/")] = true
	}
	if len(used) != len(streams) {
		t.Errorf("operations for %v alone", used)
	}
	all := references(whole)
	if len(all) < 3*len(streams) {
		t.Errorf("only %d references", len(all))
	}
	for _, ref := range all {
		if !resolves(whole, ref) {
			t.Errorf("%s leads nowhere", ref)
		}
	}
}
