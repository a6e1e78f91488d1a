package history

// WithFirstWindow has searches begin with windows of so many messages.
func (r *Reader) WithFirstWindow(messages uint64) *Reader {
	r.first = messages
	return r
}
