package listener

// Coverage records how much the schedule can rely on events. Its methods never block.
type Coverage interface {
	// Gap is called after a time in which events may have been missed, once events flow again.
	Gap(reason string)
	// SetComplete(false) means that events needed for adoption are missing although others arrive, or that the user may
	// not subscribe to them. SetComplete(true) means that they arrive again.
	SetComplete(complete bool)
	// SetBeyond reports whether timers exist in apps outside the namespaces whose keys are not followed. Then only
	// audits find changes of these keys.
	SetBeyond(beyond bool)
	// Audited receives after an audit, which may have forgotten some apps.
	Audited() <-chan struct{}
}

// reported is the state of the events as last reported, across sessions.
type reported struct {
	beyond         bool   // the last report by SetBeyond; set by apps
	incomplete     bool   // the last report by SetComplete, negated; set by the canary and the listener
	missing        string // flags last logged as missing; set by the canary
	warnedNoClaims bool   // the missing right to claim messages was logged; set by the session

	followed []string // followed apps outside the namespaces; nil before the first reading; set by apps
}
