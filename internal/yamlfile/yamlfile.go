// Package yamlfile reads YAML files so that every fault in them can be told at once, with its line.
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

// Fault is what is wrong in a line of a file.
type Fault struct {
	Line int // 0: in the file as a whole
	Text string
}

func (f Fault) String() string {
	if f.Line == 0 {
		return f.Text
	}
	return fmt.Sprintf("line %d: %s", f.Line, f.Text)
}

// Faults are what is wrong in a file.
type Faults []Fault

// Add adds a fault.
func (f *Faults) Add(line int, format string, args ...any) {
	*f = append(*f, Fault{line, fmt.Sprintf(format, args...)})
}

// Sort brings the faults into the order of their lines.
func (f Faults) Sort() {
	slices.SortStableFunc(f, func(a, b Fault) int { return cmp.Compare(a.Line, b.Line) })
}

// Parse returns the root of a file, nil if the file is empty. fault says where it is not YAML, which is the first
// such place alone.
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

// Resolved returns what an alias stands for.
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

// KindOf says what a node is, for a fault.
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
