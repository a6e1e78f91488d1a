package listener

// Coverage is told how far the events can be relied on. Its methods never block.
type Coverage interface {
	// Gap is called, once events flow again, after any time in which some may have been missed.
	Gap(reason string)
	// SetComplete is called with false when the events that adoption needs stay away although others come, and with true when
	// they are back.
	SetComplete(complete bool)
	// SetBeyond is called with true when there are apps outside the namespaces whose keys are not followed, so that only
	// audits find changes of them, and with false when there are none any more.
	SetBeyond(beyond bool)
	// Audited receives when some of the apps may have been forgotten.
	Audited() <-chan struct{}
}

// reported is what was last said of the events, over all sessions.
type reported struct {
	beyond     bool   // what SetBeyond was last called with; of apps
	incomplete bool   // what SetComplete was last called with, negated; of the canary
	missing    string // what was last logged as missing; of the canary
	untold     bool   // it was logged that claims cannot be heard of; of the session
}
