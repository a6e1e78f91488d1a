package listener

// Coverage is told how far the events can be relied on. Its methods never block.
type Coverage interface {
	// Gap is called after each time in which events may have been missed, once they flow again.
	Gap(reason string)
	// SetComplete is called with false when the events that adoption needs do not arrive although others do, or the user may not
	// subscribe to them, and with true when they arrive again.
	SetComplete(complete bool)
	// SetBeyond is called with true when there are apps outside the namespaces whose keys are not followed, so that
	// only audits find changes of these keys, and with false when there are no such apps any more.
	SetBeyond(beyond bool)
	// Audited receives after an audit, which may have forgotten some apps.
	Audited() <-chan struct{}
}

// reported is what was last said of the events, over all sessions.
type reported struct {
	beyond     bool   // what SetBeyond was last called with; of apps
	incomplete bool   // what SetComplete was last called with, negated; of the canary and the listener
	missing    string // what was last logged as missing; of the canary
	untold     bool   // it was logged that claims cannot be heard of; of the session

	followed []string // the apps outside the namespaces that are followed; nil before they have been asked for; of apps
}
