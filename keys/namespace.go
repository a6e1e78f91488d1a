package keys

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Namespace names the timers of an app, of one module of it, or of one type of that module. An empty part stands for
// any.
type Namespace struct {
	App, Module, Type string
}

// reserved are the ASCII characters with a meaning in or around written namespaces: in lists, shells, YAML and files of
// variables. A namespace has them only as %XX.
const reserved = "%*,;=|\"'`()[]<>\\$"

// isStray reports whether a character slipped into a namespace from the text around it: quotes, brackets, separators,
// blanks and invisible marks. Braces do not count: they make a cluster's hash tags.
func isStray(r rune) bool {
	return strings.ContainsRune(reserved, r) && r != '%' && r != '*' ||
		unicode.In(r, unicode.Z, unicode.Cc, unicode.Cf, unicode.Pi, unicode.Pf, unicode.Ps, unicode.Pe) && r != '{' &&
			r != '}' ||
		strings.ContainsRune("，、；：＝＊｜＂＇", r) // of keyboards that write Chinese or Japanese
}

// ParseNamespace reads app[:module[:type]]; * or a part left out stands for any. Any byte can be written %XX, and
// quotes, brackets, separators and white space must be. An error about these shows the namespace with them encoded.
func ParseNamespace(s string) (Namespace, error) {
	n, err := ReadNamespace(s)
	if err != nil {
		return Namespace{}, err
	}
	if i := strings.IndexFunc(s, isStray); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return Namespace{}, fmt.Errorf(
			"namespace %q: %s is not allowed: leave it out (commas divide a list); if keys have it, write %s",
			s, nameOf(r), n)
	}
	return n, nil
}

// ReadNamespace reads a stored text that String has returned. Earlier versions did not encode quotes, brackets and the
// like, so it accepts these.
func ReadNamespace(s string) (Namespace, error) {
	parts := strings.Split(s, ":")
	if len(parts) > 3 {
		return Namespace{}, fmt.Errorf("namespace %q: want app[:module[:type]], at most three parts", s)
	}
	var fields [3]string
	for i, part := range parts {
		if part == "*" {
			continue
		}
		if part == "" {
			return Namespace{}, fmt.Errorf("namespace %q: part %d is empty; write * for any", s, i+1)
		}
		if strings.Contains(part, "*") {
			return Namespace{}, fmt.Errorf(
				"namespace %q: * stands for a whole part, not within one (write %%2A for a literal star)", s)
		}
		decoded, err := DecodeText(part)
		if err != nil {
			return Namespace{}, fmt.Errorf("namespace %q: %w", s, err)
		}
		if strings.Contains(decoded, ":") {
			return Namespace{}, fmt.Errorf("namespace %q: part %d holds a colon, which no key can match", s, i+1)
		}
		if len(decoded) > MaxPartBytes {
			return Namespace{}, fmt.Errorf("namespace %q: part %d has %d bytes, at most %d are allowed", s, i+1,
				len(decoded), MaxPartBytes)
		}
		fields[i] = decoded
	}
	return Namespace{App: fields[0], Module: fields[1], Type: fields[2]}, nil
}

// nameOf returns a character for an error: an invisible one by its name.
func nameOf(r rune) string {
	switch {
	case r == ' ':
		return "a blank"
	case r == '\'':
		return `"'"`
	case unicode.IsGraphic(r) && !unicode.IsSpace(r):
		return strconv.Quote(string(r))
	}
	return fmt.Sprintf("the invisible %U", r)
}

// String returns the form that ParseNamespace reads, with trailing stars left out.
func (n Namespace) String() string {
	parts := []string{n.App, n.Module, n.Type}
	for len(parts) > 1 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	for i, part := range parts {
		if part == "" {
			parts[i] = "*"
			continue
		}
		var b strings.Builder
		for j := range len(part) {
			if c := part[j]; c <= ' ' || c >= 0x7f || strings.IndexByte(reserved, c) >= 0 {
				writePercent(&b, c)
			} else {
				b.WriteByte(c)
			}
		}
		parts[i] = b.String()
	}
	return strings.Join(parts, ":")
}

// Match reports whether k is in the namespace.
func (n Namespace) Match(k Key) bool {
	return (n.App == "" || n.App == k.App) &&
		(n.Module == "" || n.Module == k.Module) &&
		(n.Type == "" || n.Type == k.Type)
}

// Covers reports whether every key in m is in n too.
func (n Namespace) Covers(m Namespace) bool {
	return n.Match(Key{App: m.App, Module: m.Module, Type: m.Type})
}

// Overlap returns the namespace of the keys in both n and m. ok is false if there are none.
func (n Namespace) Overlap(m Namespace) (both Namespace, ok bool) {
	parts := func(n *Namespace) [3]*string { return [3]*string{&n.App, &n.Module, &n.Type} }
	both = n
	for i, part := range parts(&both) {
		other := *parts(&m)[i]
		if *part != "" && other != "" && *part != other {
			return Namespace{}, false
		}
		*part = cmp.Or(*part, other)
	}
	return both, true
}

// join returns the narrowest namespace that covers both n and m.
func (n Namespace) join(m Namespace) Namespace {
	same := func(a, b string) string {
		if a == b {
			return a
		}
		return ""
	}
	return Namespace{same(n.App, m.App), same(n.Module, m.Module), same(n.Type, m.Type)}
}

// Glob returns the Redis glob pattern of the namespace's keys. It may match more than the namespace, because a glob
// star matches colons too; Match decides.
func (n Namespace) Glob() string {
	var b strings.Builder
	for _, part := range [...]string{n.App, n.Module, n.Type} {
		if part == "" {
			b.WriteByte('*')
		}
		for i := range len(part) {
			if strings.IndexByte(`*?[]\^-`, part[i]) >= 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(part[i])
		}
		b.WriteByte(':')
	}
	b.WriteByte('*')
	return b.String()
}

// Subject returns the wildcard subject of the namespace's events of the given kind, such as timers.fired.shop.*.* for
// the namespace shop.
func (n Namespace) Subject(prefix, kind string) string {
	tokens := []string{prefix, kind}
	for _, part := range [...]string{n.App, n.Module, n.Type} {
		if part == "" {
			tokens = append(tokens, "*")
		} else {
			tokens = append(tokens, EncodeToken(part))
		}
	}
	return strings.Join(tokens, ".")
}

// ParseFilter returns the namespace of a subject for events of a kind, perhaps with wildcards. It is the inverse of
// Namespace.Subject, and accepts a > at the end too. ok is false for any other subject.
func ParseFilter(subject, prefix, kind string) (n Namespace, ok bool) {
	rest, ok := strings.CutPrefix(subject, prefix+"."+kind+".")
	tokens := strings.Split(rest, ".")
	parts := [...]*string{&n.App, &n.Module, &n.Type}
	if !ok || len(tokens) > len(parts) || len(tokens) < len(parts) && tokens[len(tokens)-1] != ">" {
		return Namespace{}, false
	}
	for i, token := range tokens {
		if token == "*" || token == ">" {
			continue
		}
		part, err := DecodeToken(token)
		if err != nil || part == "" {
			return Namespace{}, false
		}
		*parts[i] = part
	}
	return n, true
}

// maxDurableName is JetStream's limit, in bytes.
const maxDurableName = 255

// Durable returns the name of the durable consumer of the namespace's events: prefix and the parts, such as
// timerd~shop~order for shop:order. It is unique.
func (n Namespace) Durable(prefix string) string {
	name := prefix
	for _, part := range [...]string{n.App, n.Module, n.Type} {
		name += "~" + EncodeToken(part)
	}
	name = strings.TrimRight(name, "~")
	if len(name) > maxDurableName {
		return fmt.Sprintf("%s~~%x", prefix, sha256.Sum256([]byte(name)))
	}
	return name
}

// Namespaces is a set of namespaces. A key is in the set if it is in one of them.
type Namespaces []Namespace

// ParseNamespaces reads a comma-separated list of namespaces, and reports every fault in it. The list must not be
// empty. Namespaces covered by another one of the list are left out of the result.
func ParseNamespaces(s string) (Namespaces, error) {
	var all Namespaces
	var faults []error
	for entry := range strings.SplitSeq(s, ",") {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			continue
		}
		n, err := ParseNamespace(entry)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		all = append(all, n)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if len(all) == 0 {
		return nil, errors.New(
			"no namespace given: want a comma-separated list of app[:module[:type]], or * for every four-part key")
	}
	var set Namespaces
	for i, n := range all {
		covered := slices.ContainsFunc(set, func(m Namespace) bool { return m.Covers(n) }) ||
			slices.ContainsFunc(all[i+1:], func(m Namespace) bool { return m.Covers(n) && m != n })
		if !covered {
			set = append(set, n)
		}
	}
	return set, nil
}

// Apart returns namespaces that cover those of the set and do not overlap: two that overlap are replaced by the
// narrowest that covers both. The order of the set does not matter.
func (ns Namespaces) Apart() Namespaces {
	apart := slices.Clone(ns)
	slices.SortFunc(apart, func(a, b Namespace) int {
		return cmp.Or(cmp.Compare(a.App, b.App), cmp.Compare(a.Module, b.Module), cmp.Compare(a.Type, b.Type))
	})
	for i := 0; i < len(apart); i++ {
		for j := i + 1; j < len(apart); j++ {
			if _, ok := apart[i].Overlap(apart[j]); ok {
				apart[i] = apart[i].join(apart[j])
				apart = slices.Delete(apart, j, j+1)
				i, j = -1, len(apart) // the joined one may overlap others
			}
		}
	}
	return apart
}

// Match reports whether k is in one of the namespaces.
func (ns Namespaces) Match(k Key) bool {
	return ns.Find(k) >= 0
}

// Other stands for the timers of all other namespaces in counts by namespace.
const Other = "other"

// maxCounted limits the namespaces of counts: a metric has a series for each.
const maxCounted = 50

// Counted returns the namespaces for counts: the first 50 of the set.
func (ns Namespaces) Counted() Namespaces { return ns[:min(len(ns), maxCounted)] }

// Find returns the index of the first namespace with k, or -1 if there is none.
func (ns Namespaces) Find(k Key) int {
	return slices.IndexFunc(ns, func(n Namespace) bool { return n.Match(k) })
}

// Cover reports whether every key of n is in one of the namespaces.
func (ns Namespaces) Cover(n Namespace) bool {
	return slices.ContainsFunc(ns, func(m Namespace) bool { return m.Covers(n) })
}

// String returns the list that ParseNamespaces reads.
func (ns Namespaces) String() string {
	parts := make([]string, len(ns))
	for i, n := range ns {
		parts[i] = n.String()
	}
	return strings.Join(parts, ",")
}
