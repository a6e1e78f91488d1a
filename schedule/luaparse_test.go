package schedule

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// luaFile has the declarations and uses of a file of Lua 5.1, as its parser finds them.
type luaFile struct {
	name     string
	defines  map[string]bool // ROOM.NAME: functions and constants of rooms
	members  []luaUse        // ROOM.NAME: uses of members of variables that the file does not declare
	free     []luaUse        // uses of variables that the file does not declare
	outlives []luaUse        // what functions set that is of the file or of others: variables, and members of tables
	lines    int
	longest  int    // lines of the longest function
	longer   string // where that one begins
	// lastDefined is the line of the last function of a room or of steps.
	lastDefined int
}

// luaUse is a use of a name.
type luaUse struct {
	name string
	line int
}

func (u luaUse) String() string { return fmt.Sprintf("%s in line %d", u.name, u.line) }

type luaToken struct {
	kind string // name, text, number, or the symbol itself
	text string
	line int
}

var luaTokens = regexp.MustCompile(`^(?:(\s+|--\[\[(?s:.*?)\]\]|--[^\n]*)|([A-Za-z_]\w*)|('(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")|(\d+\.?\d*)|(\.\.\.|\.\.|[=~<>]=|.))`)

// luaParser parses Lua, without regard to the precedence of operators.
type luaParser struct {
	*luaFile
	tokens []luaToken
	at     int
	scopes []luaScope
}

// luaScope is a block: the variables that it declares, and the number of functions around it.
type luaScope struct {
	names map[string]bool
	depth int
}

// parseLua parses a file. It panics where that is malformed.
func parseLua(name, text string) *luaFile {
	file := &luaFile{name: name, lines: strings.Count(text, "\n"), defines: map[string]bool{}}
	p := &luaParser{luaFile: file, scopes: []luaScope{{names: map[string]bool{}}}}
	line := 1
	if strings.HasPrefix(text, "#!") {
		_, text, _ = strings.Cut(text, "\n")
		line++
	}
	for text != "" {
		m := luaTokens.FindStringSubmatch(text)
		for i, kind := range []string{"name", "text", "number", m[5]} {
			if m[i+2] != "" {
				p.tokens = append(p.tokens, luaToken{kind, m[i+2], line})
			}
		}
		if last := len(p.tokens) - 1; m[2] != "" && slices.Contains(luaKeywords(), m[2]) {
			p.tokens[last].kind = m[2]
		}
		line += strings.Count(m[0], "\n")
		text = text[len(m[0]):]
	}
	p.tokens = append(p.tokens, luaToken{kind: "EOF", line: line})
	p.block("EOF")
	return p.luaFile
}

func luaKeywords() []string {
	return strings.Fields(
		"and break do else elseif end false for function if in local nil not or repeat return then true until while")
}

func (p *luaParser) peek() string { return p.tokens[p.at].kind }

func (p *luaParser) next() luaToken {
	p.at++
	return p.tokens[p.at-1]
}

func (p *luaParser) accept(kind string) bool {
	if p.peek() != kind {
		return false
	}
	p.at++
	return true
}

func (p *luaParser) want(kind string) luaToken {
	t := p.next()
	if t.kind != kind {
		panic(fmt.Sprintf("%s:%d: %q, want %s", p.name, t.line, t.text, kind))
	}
	return t
}

// block parses statements until one of some keywords, which it takes.
func (p *luaParser) block(ends ...string) (end string) {
	for !slices.Contains(ends, p.peek()) {
		p.statement()
	}
	return p.next().kind
}

// in runs parse in a block of its own.
func (p *luaParser) in(functions int, parse func()) {
	p.scopes = append(p.scopes, luaScope{map[string]bool{}, p.depth() + functions})
	parse()
	p.scopes = p.scopes[:len(p.scopes)-1]
}

func (p *luaParser) depth() int { return p.scopes[len(p.scopes)-1].depth }

func (p *luaParser) declare(names ...string) {
	for _, name := range names {
		p.scopes[len(p.scopes)-1].names[name] = true
	}
}

// declared returns the number of functions around the declaration of a variable, or -1.
func (p *luaParser) declared(name string) int {
	for _, s := range slices.Backward(p.scopes) {
		if s.names[name] {
			return s.depth
		}
	}
	return -1
}

func (p *luaParser) statement() {
	switch p.peek() {
	case "local":
		p.next()
		p.local()
	case "function":
		begin := p.next().line
		name := p.want("name").text
		for p.accept(".") {
			member := p.want("name").text
			if p.depth() == 0 {
				p.defines[name+"."+member] = true
				p.lastDefined = begin
			}
		}
		p.function(begin)
	case "if":
		p.next()
		for end := "if"; end != "end"; {
			if end != "else" {
				p.expression()
				p.want("then")
			}
			p.in(0, func() { end = p.block("else", "elseif", "end") })
		}
	case "while":
		p.next()
		p.expression()
		p.want("do")
		p.in(0, func() { p.block("end") })
	case "do":
		p.next()
		p.in(0, func() { p.block("end") })
	case "for":
		p.next()
		names := p.names()
		if !p.accept("=") {
			p.want("in")
		}
		p.expressions()
		p.want("do")
		p.in(0, func() {
			p.declare(names...)
			p.block("end")
		})
	case "repeat":
		p.next()
		p.in(0, func() {
			p.block("until")
			p.expression()
		})
	case "return":
		p.next()
		if !slices.Contains([]string{"end", "else", "elseif", "until", "EOF"}, p.peek()) {
			p.expressions()
		}
	case "break", ";":
		p.next()
	default:
		p.assignment()
	}
}

func (p *luaParser) local() {
	if p.accept("function") {
		name := p.want("name")
		p.declare(name.text)
		p.function(name.line)
		return
	}
	names := p.names()
	if p.accept("=") {
		p.expressions()
	}
	p.declare(names...)
}

func (p *luaParser) names() (names []string) {
	for {
		names = append(names, p.want("name").text)
		if !p.accept(",") {
			return names
		}
	}
}

// assignment parses an assignment or a call.
func (p *luaParser) assignment() {
	var targets []luaUse
	for {
		line := p.tokens[p.at].line
		if target := p.suffixed(); target != "" {
			targets = append(targets, luaUse{target, line})
		}
		if !p.accept(",") {
			break
		}
	}
	if !p.accept("=") {
		return
	}
	p.expressions()
	for _, target := range targets {
		root, _, isMember := strings.Cut(target.name, ".")
		switch {
		case p.depth() == 0 && isMember && p.declared(root) < 0:
			p.defines[target.name] = true
		case p.depth() > 0 && p.declared(root) <= 0:
			p.outlives = append(p.outlives, target)
		}
	}
}

// function parses the parameters and the body of a function.
func (p *luaParser) function(begin int) {
	p.want("(")
	p.in(1, func() {
		for !p.accept(")") {
			if t := p.next(); t.kind == "name" {
				p.declare(t.text)
			}
		}
		p.block("end")
	})
	if lines := p.tokens[p.at-1].line - begin + 1; lines > p.longest {
		p.longest, p.longer = lines, fmt.Sprintf("%s:%d", p.name, begin)
	}
}

func (p *luaParser) expressions() {
	p.expression()
	for p.accept(",") {
		p.expression()
	}
}

func (p *luaParser) expression() {
	for slices.Contains([]string{"not", "-", "#"}, p.peek()) {
		p.next()
	}
	switch p.peek() {
	case "nil", "true", "false", "number", "text", "...":
		p.next()
	case "function":
		p.function(p.next().line)
	case "{":
		p.table()
	default:
		p.suffixed()
	}
	if slices.Contains(strings.Fields("+ - * / ^ % .. < <= > >= == ~= and or"), p.peek()) {
		p.next()
		p.expression()
	}
}

func (p *luaParser) table() {
	p.want("{")
	for !p.accept("}") {
		switch {
		case p.accept("["):
			p.expression()
			p.want("]")
			p.want("=")
		case p.peek() == "name" && p.tokens[p.at+1].kind == "=":
			p.at += 2
		}
		p.expression()
		if !p.accept(",") {
			p.accept(";")
		}
	}
}

// suffixed parses a variable, a member or a call. It returns ROOT or ROOT.NAME if that can be set, perhaps a member of
// a member.
func (p *luaParser) suffixed() (target string) {
	if p.accept("(") {
		p.expression()
		p.want(")")
	} else {
		root := p.want("name")
		target = root.text
		if p.declared(target) < 0 {
			p.free = append(p.free, luaUse{target, root.line})
			if p.peek() == "." {
				p.members = append(p.members, luaUse{target + "." + p.tokens[p.at+1].text, root.line})
			}
		}
	}
	root := target
	for {
		switch p.peek() {
		case ".", ":":
			p.next()
			target = root + "." + p.want("name").text
		case "[":
			p.next()
			p.expression()
			p.want("]")
			target = root + ".[]"
		case "(":
			p.next()
			if !p.accept(")") {
				p.expressions()
				p.want(")")
			}
			root, target = "", ""
		case "{":
			p.table()
			root, target = "", ""
		case "text":
			p.next()
			root, target = "", ""
		default:
			return target
		}
		if root == "" {
			target = ""
		}
	}
}
