package history

import "time"

// WithFirstWindow has searches begin with windows of so many messages.
func (r *Reader) WithFirstWindow(messages uint64) *Reader {
	r.first = messages
	return r
}

// WithPatience has searches wait so long for the log of deliveries.
func (r *Reader) WithPatience(most time.Duration) *Reader {
	r.log.openTime, r.log.lookTime = most, most
	return r
}
