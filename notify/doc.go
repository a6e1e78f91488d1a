// Package notify carries firings to NATS and retries back: the streams they go to,
// the publisher, which takes claimed firings in and settles them once JetStream has
// acknowledged them, the policies by which a timer fires again, and the intake of
// retry requests, which sets timers again or makes dead letters of them.
package notify
