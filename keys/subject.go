package keys

import (
	"fmt"
	"strings"
)

// Kinds of subject: the second token of <prefix>.<kind>.<app>.<module>.<type>.
const (
	Fired = "fired" // firings, published by timerd
	Retry = "retry" // requests to fire again, published by consumers
	Dead  = "dead"  // dead letters

	Delivery = "delivery" // results of calls of HTTP endpoints
	// History is the ends of timers without an event.
	History = "history"
	// Operator is the actions of operators, and incidents, in the stream of History. Its subjects belong to no timer;
	// see [Names.OperatorSubject].
	Operator = History + ".operator"
	// State is an installation's own data. Its subjects belong to no timer.
	State = "state"
)

// Subject returns the NATS subject of k's events of the given kind: <prefix>.<kind>.<app>.<module>.<type>, each part
// percent-encoded by EncodeToken. Its length is bounded by the limits of a key.
func (k Key) Subject(prefix, kind string) string {
	var b strings.Builder
	b.Grow(len(prefix) + len(kind) + len(k.App) + len(k.Module) + len(k.Type) + 4)
	b.WriteString(prefix)
	b.WriteByte('.')
	b.WriteString(kind)
	for _, part := range [...]string{k.App, k.Module, k.Type} {
		b.WriteByte('.')
		writeToken(&b, part)
	}
	return b.String()
}

// ParseSubject is the inverse of Subject: it returns the app, module and type in a subject of the given prefix and
// kind.
func ParseSubject(subject, prefix, kind string) (app, module, typ string, err error) {
	rest, ok := strings.CutPrefix(subject, prefix+"."+kind+".")
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) != 3 {
		return "", "", "", fmt.Errorf("subject %q: want %s.%s.<app>.<module>.<type>", subject, prefix, kind)
	}
	for i, token := range tokens {
		part, err := DecodeToken(token)
		if err != nil {
			return "", "", "", fmt.Errorf("subject %q: %w", subject, err)
		}
		if part == "" {
			return "", "", "", fmt.Errorf("subject %q: token %d is empty", subject, i+3)
		}
		tokens[i] = part
	}
	return tokens[0], tokens[1], tokens[2], nil
}

// SubjectAll returns the wildcard subject of every event of the given kind: <prefix>.<kind>.>
func SubjectAll(prefix, kind string) string { return prefix + "." + kind + ".>" }

// EncodeToken writes every byte outside A-Z a-z 0-9 _ - as %XX (upper-case hex), so that any bytes make one valid token
// of a NATS subject.
func EncodeToken(s string) string {
	var b strings.Builder
	writeToken(&b, s)
	return b.String()
}

// DecodeToken is the inverse of EncodeToken. It refuses texts that EncodeToken never writes, so that the mapping is one
// to one.
func DecodeToken(s string) (string, error) { return decodePercent(s, isTokenByte) }

func writeToken(b *strings.Builder, s string) {
	for i := range len(s) {
		if isTokenByte(s[i]) {
			b.WriteByte(s[i])
		} else {
			writePercent(b, s[i])
		}
	}
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}
