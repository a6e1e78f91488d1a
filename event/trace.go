package event

import "strings"

// Trace returns the trace in which a timer was set, for Event. parent is the traceparent set with the timer, or "".
// payload may be a JSON object with the strings traceparent and tracestate. parent wins. The payload's tracestate
// belongs to the payload's traceparent, or to parent if there is none. Malformed values are left out.
func Trace(parent string, payload []byte) (traceParent, traceState string) {
	found, state := payloadTrace(payload)
	switch {
	case parent == "" && isTraceParent(found):
		parent = found
	case parent == "" || !isTraceParent(parent):
		return "", ""
	case found != "" && found != parent:
		return parent, ""
	}
	if !isTraceState(state) {
		state = ""
	}
	return parent, state
}

// payloadTrace returns the strings traceparent and tracestate of a payload that is a JSON object; the last ones of
// several.
func payloadTrace(payload []byte) (parent, state string) {
	if !mayHold(payload, "trace") || DataContentType(payload) != DataJSON {
		return "", ""
	}
	object := members{b: payload}
	for object.next() {
		if object.value[0] != '"' {
			continue
		}
		switch string(object.name) {
		case TraceParentHeader:
			parent = string(unquote(object.value))
		case TraceStateHeader:
			state = string(unquote(object.value))
		}
	}
	return parent, state
}

const traceParentBytes = 55

// isTraceParent reports whether a text is a traceparent of W3C Trace Context: version, trace id, parent id and flags.
// lua/functions/timers.lua has the same test.
func isTraceParent(s string) bool {
	if len(s) != traceParentBytes || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" {
		return false
	}
	hex := s[:2] + s[3:35] + s[36:52] + s[53:]
	return strings.Trim(hex, "0123456789abcdef") == "" && strings.Trim(s[3:35], "0") != "" &&
		strings.Trim(s[36:52], "0") != ""
}

const (
	maxTraceStateBytes   = 512
	maxTraceStateMembers = 32
	maxTraceStateKey     = 256 // bytes; of a value too
)

// isTraceState reports whether a text is a tracestate of W3C Trace Context.
func isTraceState(s string) bool {
	if s == "" || len(s) > maxTraceStateBytes {
		return false
	}
	all := strings.Split(s, ",")
	if len(all) > maxTraceStateMembers {
		return false
	}
	for _, member := range all {
		if member = strings.Trim(member, " \t"); member != "" && !isTraceStateMember(member) {
			return false
		}
	}
	return true
}

// isTraceStateMember reports whether a text is key=value.
func isTraceStateMember(s string) bool {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" || value == "" || len(key) > maxTraceStateKey || len(value) > maxTraceStateKey {
		return false
	}
	const first = "abcdefghijklmnopqrstuvwxyz0123456789"
	unfit := func(r rune) bool { return r < ' ' || r > '~' || r == '=' }
	return strings.IndexByte(first, key[0]) >= 0 && strings.Trim(key, first+"_-*/@") == "" &&
		!strings.ContainsFunc(value, unfit)
}

// dropBadTrace removes malformed parts of a trace.
func (e *Event) dropBadTrace() {
	if !isTraceParent(e.TraceParent) {
		e.TraceParent, e.TraceState = "", ""
	} else if !isTraceState(e.TraceState) {
		e.TraceState = ""
	}
}

// SetTraceHeaders sets the trace headers of a message that carries e, and removes those of another trace.
func (e *Event) SetTraceHeaders(header map[string][]string) {
	for name, value := range map[string]string{TraceParentHeader: e.TraceParent, TraceStateHeader: e.TraceState} {
		if value == "" {
			delete(header, name)
		} else {
			header[name] = []string{value}
		}
	}
}
