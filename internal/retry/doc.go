// Package retry fires a timer again if its consumer could not do the work. The consumer asks for that with a message to
// the stream of retry requests. The retry [Consumer] sets the timer again after the delay of its [policy.Retry], or
// makes the event a dead letter when its attempts are used up.
package retry
