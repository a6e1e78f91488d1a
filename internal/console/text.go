package console

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/timerd-io/timerd/event"
	"github.com/timerd-io/timerd/keys"
)

// Keys, payloads, reasons and errors are other people's text. It is shown piece by piece, with a name in place of each
// character that is invisible or changes the direction of reading. The templates escape the pieces, as they escape
// everything.

// Piece is a part of a text, or the name of an invisible character.
type Piece struct {
	Text string
	Odd  bool // Text names a character or a byte
}

// pieces splits a text at characters shown by name. If multiline is set, line ends and tabs stay.
func pieces(s string, multiline bool) []Piece {
	var all []Piece
	plain := 0
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		name := oddName(r, s[i:i+size], multiline)
		if name != "" {
			if plain < i {
				all = append(all, Piece{Text: s[plain:i]})
			}
			all = append(all, Piece{name, true})
			plain = i + size
		}
		i += size
	}
	if plain < len(s) {
		all = append(all, Piece{Text: s[plain:]})
	}
	return all
}

// plain returns a text as one piece, for a title or a label.
func plain(s string) string {
	var b strings.Builder
	for _, p := range pieces(s, false) {
		b.WriteString(p.Text)
	}
	return b.String()
}

// oddName returns the name shown for a character, or "" for one shown as it is.
func oddName(r rune, raw string, multiline bool) string {
	switch {
	case r == utf8.RuneError && len(raw) <= 1:
		return fmt.Sprintf("\\x%02X", raw[0])
	case multiline && (r == '\n' || r == '\t'):
		return ""
	case r == '\n':
		return "\\n"
	case r == '\r':
		return "\\r"
	case r == '\t':
		return "\\t"
	case r < 0x20 || r == 0x7f:
		return fmt.Sprintf("\\x%02X", r)
	case r == ' ':
		return ""
	case !unicode.IsPrint(r): // controls, also for direction and joining, and invisible spaces
		return fmt.Sprintf("U+%04X", r)
	}
	return ""
}

// keyText is a key in pieces: its namespace is pale, its id stands out.
type keyText struct {
	Parts [][]Piece // of the namespace, each to be followed by a colon
	ID    []Piece
}

func newKeyText(k keys.Key) keyText {
	return keyText{
		Parts: [][]Piece{pieces(k.App, false), pieces(k.Module, false), pieces(k.Type, false)},
		ID:    pieces(k.ID, false),
	}
}

// encodeRef encodes the exact bytes of a key as one segment of a path, or a field of a form: there browsers change line
// ends and bytes that are not UTF-8.
func encodeRef(key string) string { return url.PathEscape(key) }

// decodeRef is the inverse of encodeRef.
func decodeRef(ref string) (keys.Key, error) {
	text, err := url.PathUnescape(ref)
	if err != nil {
		return keys.Key{}, fmt.Errorf("%s: %w", event.ClipText(ref), err)
	}
	return keys.Parse(text)
}

// typed returns the content of a field. Bytes that are not UTF-8 are written as in displayed keys, because a form could
// not return them.
func typed(values url.Values, name string) string {
	text := strings.TrimSpace(values.Get(name))
	if !utf8.ValidString(text) {
		return keys.EncodeText(text)
	}
	return text
}

// The limits of a payload shown in a row, and on its own page, in bytes. Few payloads exceed the second.
const (
	previewBytes = 120
	payloadBytes = 64 << 10
)

// Payload is the displayed part of a timer's payload.
type Payload struct {
	Type   string `json:"type,omitempty"`   // its content type; empty without a payload
	Status string `json:"status,omitempty"` // why there is none: missing or toolarge
	Size   int    `json:"size"`             // bytes of the whole payload
	Cut    bool   `json:"cut,omitempty"`    // Text or Base64 is only its beginning
	Text   string `json:"text,omitempty"`   // JSON, or other text
	Base64 string `json:"base64,omitempty"` // other bytes
	Pretty string `json:"-"`                // Text, indented
}

// newPayload returns a payload cut at most bytes; nil means no payload.
func newPayload(data []byte, status string, most int) Payload {
	if data == nil {
		return Payload{Status: status}
	}
	p := Payload{Size: len(data), Type: event.DataContentType(data)}
	some := data
	if len(some) > most {
		p.Cut, some = true, some[:most]
		for p.Type != event.DataBinary && len(some) > 0 && !utf8.Valid(some[max(len(some)-utf8.UTFMax, 0):]) &&
			most-len(some) < utf8.UTFMax {
			some = some[:len(some)-1]
		}
	}
	if p.Type == event.DataBinary {
		p.Base64 = base64.StdEncoding.EncodeToString(some)
		return p
	}
	p.Text = strings.ToValidUTF8(string(some), "")
	p.Pretty = p.Text
	// Deeply nested JSON is shown as it is: indenting mere brackets could multiply its size by ten thousand.
	if p.Type == event.DataJSON && !p.Cut && most > previewBytes && indentedSize(some) <= 4*payloadBytes {
		var b bytes.Buffer
		if json.Indent(&b, some, "", "  ") == nil {
			p.Pretty = b.String()
		}
	}
	return p
}

// indentedSize returns an upper bound, in bytes, of a JSON text indented by two spaces.
func indentedSize(data []byte) int {
	size, depth, quoted := len(data), 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[', c == '{':
			depth++
			size += 1 + 2*depth
		case c == ']', c == '}':
			depth--
			size += 1 + 2*depth
		case c == ',':
			size += 1 + 2*depth
		case c == ':':
			size++
		}
	}
	return size
}

// whole sets the size of the whole payload when only its beginning was read.
func (p *Payload) whole(size int) {
	if p.Type != "" && size > p.Size {
		p.Size, p.Cut = size, true
	}
}

// Shown returns the payload in pieces, for a page.
func (p Payload) Shown() []Piece {
	if p.Base64 != "" {
		data, _ := base64.StdEncoding.DecodeString(p.Base64) // encoded in newPayload
		return pieces(string(data), true)
	}
	return pieces(p.Pretty, true)
}

// ShownSize returns the number of payload bytes shown.
func (p Payload) ShownSize() int {
	return max(len(p.Text), base64.StdEncoding.DecodedLen(len(p.Base64)))
}

// Preview returns the payload in pieces, for a row.
func (p Payload) Preview() []Piece {
	text := p.Text
	if p.Base64 != "" {
		data, _ := base64.StdEncoding.DecodeString(p.Base64)
		text = string(data)
	}
	if len(text) > previewBytes {
		text = strings.ToValidUTF8(text[:previewBytes], "")
	}
	return pieces(text, false)
}

// parseNamespaceQuery reads a namespace; an empty text means any.
func parseNamespaceQuery(text string) (keys.Namespace, error) {
	if text == "" {
		return keys.Namespace{}, nil
	}
	n, err := keys.ParseNamespace(strings.TrimSuffix(text, ":"))
	if err != nil {
		return n, badRequest(err.Error(),
			"A namespace is app[:module[:type]], with * for any part, such as shop:order.")
	}
	return n, nil
}

// clip shortens a user's text.
func clip(s string, most int) string {
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
