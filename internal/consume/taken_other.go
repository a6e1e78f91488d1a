//go:build !linux

package consume

// awaitTaken returns at once: elsewhere only the reading end of a pipe knows the number of bytes in it. So an answer
// without an id, written before the command has read the event, may be taken for the event's own.
func (*input) awaitTaken() {}
