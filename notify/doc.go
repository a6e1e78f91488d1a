// Package notify carries firings to NATS: the streams that they go to, and the publisher, which takes claimed firings
// in, publishes them, and settles them in the schedule once JetStream has acknowledged them.
package notify
