package history

import "time"

// WithFirstWindow has searches begin with windows of so many messages.
func (r *Reader) WithFirstWindow(messages uint64) *Reader {
	r.first = messages
	return r
}

// WithPatience has searches wait so long for the log of deliveries, and for the history.
func (r *Reader) WithPatience(most time.Duration) *Reader {
	for _, log := range r.logs {
		log.within = map[step]time.Duration{openStep: most, lookStep: most}
	}
	return r
}
