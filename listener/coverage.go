package listener

// Coverage records how far the events can be relied on. Its methods never block.
type Coverage interface {
	// Gap is called after each time in which events may have been missed, once they flow again.
	Gap(reason string)
	// SetComplete(false) says that the events that adoption needs are missing although others arrive, or that the
	// user may not subscribe to them; SetComplete(true), that they arrive again.
	SetComplete(complete bool)
	// SetBeyond says whether timers exist in apps outside the namespaces whose keys are not followed, so that only
	// audits find changes of these keys.
	SetBeyond(beyond bool)
	// Audited receives after an audit, which may have forgotten some apps.
	Audited() <-chan struct{}
}

// reported is the state of the events as last reported, across sessions.
type reported struct {
	beyond         bool   // last argument of SetBeyond; set by apps
	incomplete     bool   // negated last argument of SetComplete; set by the canary and the listener
	missing        string // flags last logged as missing; set by the canary
	warnedNoClaims bool   // the missing right to claim messages was logged; set by the session

	followed []string // followed apps outside the namespaces; nil before the first reading; set by apps
}
