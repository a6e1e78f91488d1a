// Package notify carries firings to NATS. The publisher takes claimed firings in, publishes them, and settles them in
// the schedule once JetStream has acknowledged them.
package notify
