package admin

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v4"

	"github.com/timerd-io/timerd/internal/yamlfile"
)

// payloadOf returns the payload of a node: a text as it is, a !!binary value decoded, and any other value as JSON.
func payloadOf(n *yaml.Node) ([]byte, error) {
	if n.Kind == yaml.ScalarNode {
		switch n.ShortTag() {
		case "!!str", "!!timestamp":
			return []byte(n.Value), nil
		case "!!null":
			return nil, errors.New("want a text, '' for an empty one, or a value for JSON; got nothing")
		case "!!binary":
			payload, err := base64.StdEncoding.DecodeString(n.Value) // skips line ends
			if err != nil {
				err = fmt.Errorf("!!binary: %w", err)
			}
			return payload, err
		}
	}
	w := jsonWriter{}
	err := w.write(n, 0)
	return w.text.Bytes(), err
}

// Bounds of a node's JSON. Aliases may make it much larger than the file, or endless.
const (
	deepestJSON = 1000    // lists and mappings in one another
	longestJSON = 8 << 20 // bytes, more than NATS takes as a rule
)

var errJSONTooLarge = fmt.Errorf("its JSON has over %d bytes, or is nested over %d deep", longestJSON, deepestJSON)

// jsonWriter writes nodes as JSON, and keeps the order of members and the spelling of numbers.
type jsonWriter struct{ text bytes.Buffer }

func (w *jsonWriter) write(n *yaml.Node, depth int) error {
	n = yamlfile.Resolved(n)
	if depth > deepestJSON || w.text.Len() > longestJSON {
		return errJSONTooLarge
	}
	switch n.Kind {
	case yaml.MappingNode:
		return w.object(n, depth)
	case yaml.SequenceNode:
		w.text.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				w.text.WriteByte(',')
			}
			if err := w.write(item, depth+1); err != nil {
				return err
			}
		}
		w.text.WriteByte(']')
		return nil
	}
	return w.scalar(n)
}

func (w *jsonWriter) object(n *yaml.Node, depth int) error {
	w.text.WriteByte('{')
	seen := map[string]bool{}
	for name, value := range yamlfile.Pairs(n) {
		if name.Kind != yaml.ScalarNode || name.ShortTag() == "!!merge" {
			return fmt.Errorf("line %d: %s cannot be the name of a member in JSON", name.Line, yamlfile.KindOf(name))
		}
		if seen[name.Value] {
			return fmt.Errorf("line %d: %.40q occurs twice", name.Line, name.Value)
		}
		if len(seen) > 0 {
			w.text.WriteByte(',')
		}
		seen[name.Value] = true
		if err := w.quote(name.Value); err != nil {
			return err
		}
		w.text.WriteByte(':')
		if err := w.write(value, depth+1); err != nil {
			return err
		}
	}
	w.text.WriteByte('}')
	return nil
}

func (w *jsonWriter) scalar(n *yaml.Node) error {
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp":
		return w.quote(n.Value)
	case "!!null":
		w.text.WriteString("null")
	case "!!bool", "!!int", "!!float":
		if !json.Valid([]byte(n.Value)) {
			return fmt.Errorf("line %d: %.40q is not valid JSON: change it, or put quotes around a text", n.Line,
				n.Value)
		}
		w.text.WriteString(n.Value)
	default:
		return fmt.Errorf("line %d: JSON has no %.40s", n.Line, tag)
	}
	return nil
}

// quote writes a string.
func (w *jsonWriter) quote(s string) error {
	encoder := json.NewEncoder(&w.text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		return err
	}
	w.text.Truncate(w.text.Len() - 1) // the end of the line
	return nil
}
