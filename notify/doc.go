// Package notify carries firings to NATS: the streams they go to, the policies
// by which a timer fires again, and the publisher, which takes claimed firings
// in and settles them once JetStream has acknowledged them.
package notify
