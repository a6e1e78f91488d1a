// Package yamlfile reads YAML files, and collects all of their faults, with their lines.
package yamlfile

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Fault is a fault in a line of a file.
type Fault struct {
	Line int // 0: in the whole file
	Text string
}

func (f Fault) String() string {
	if f.Line == 0 {
		return f.Text
	}
	return fmt.Sprintf("line %d: %s", f.Line, f.Text)
}

// Faults are the faults of a file.
type Faults []Fault

// Add adds a fault.
func (f *Faults) Add(line int, format string, args ...any) {
	*f = append(*f, Fault{line, fmt.Sprintf(format, args...)})
}

// Sort sorts the faults by line.
func (f Faults) Sort() {
	slices.SortStableFunc(f, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
}

// Parse returns the root of a file, nil if the file is empty. fault is the first place that is not YAML.
func Parse(text []byte) (root *yaml.Node, fault *Fault) {
	var document yaml.Node
	if err := yaml.Load(text, &document); err != nil {
		return nil, notYAML(err)
	}
	if len(document.Content) != 1 {
		return nil, nil
	}
	return Resolved(document.Content[0]), nil
}

func notYAML(err error) *Fault {
	at, ok := errors.AsType[*yaml.LoadError](err)
	if several, is := errors.AsType[*yaml.LoadErrors](err); is && len(several.Errors) > 0 {
		at, ok = several.Errors[0], true
	}
	if !ok {
		return &Fault{Text: err.Error()}
	}
	return &Fault{at.Mark.Line, "not YAML: " + strings.TrimPrefix(at.Message, "yaml: ")}
}

// Resolved returns the node behind an alias.
func Resolved(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// Pairs returns the names and values of a mapping.
func Pairs(n *yaml.Node) iter.Seq2[*yaml.Node, *yaml.Node] {
	return func(yield func(name, value *yaml.Node) bool) {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if !yield(Resolved(n.Content[i]), Resolved(n.Content[i+1])) {
				return
			}
		}
	}
}

// Only returns the value of a file's single top-level name, nil if it is missing. It adds that, and any other name, to
// faults.
func Only(root *yaml.Node, want string, faults *Faults) (only *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		faults.Add(root.Line, "want a list %s:, got %s", want, KindOf(root))
		return nil
	}
	for name, value := range Pairs(root) {
		switch {
		case name.Value != want:
			faults.Add(name.Line, "%.40q: want %s alone", name.Value, want)
		case only != nil:
			faults.Add(name.Line, "%s: occurs twice", want)
		default:
			only = value
		}
	}
	if only == nil {
		faults.Add(root.Line, "want a list %s:", want)
	}
	return only
}

// Fields calls read for each field of an entry, a mapping, and returns the lines of the fields. It adds unknown and
// repeated names, and the errors of read, to faults.
func Fields(entry *yaml.Node, known []string, faults *Faults,
	read func(name string, value *yaml.Node) []error) (lines map[string]int) {
	lines = map[string]int{}
	for name, value := range Pairs(entry) {
		before := lines[name.Value]
		switch {
		case !slices.Contains(known, name.Value):
			faults.Add(name.Line, "%.40q: unknown field: want %s", name.Value, strings.Join(known, ", "))
			continue
		case before > 0:
			faults.Add(name.Line, "%s: line %d has it too", name.Value, before)
			continue
		}
		lines[name.Value] = name.Line
		for _, err := range read(name.Value, value) {
			faults.Add(name.Line, "%s: %v", name.Value, err)
		}
	}
	return lines
}

// KindOf names the kind of a node, for a fault.
func KindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "nothing"
	}
	return fmt.Sprintf("%.40q", n.Value)
}
