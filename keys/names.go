package keys

import "cmp"

// Default names of an installation's streams and subjects.
const (
	DefaultPrefix = "timers"
	DefaultStream = "TIMERS"
)

// InstallationMetadata is the metadata key of a stream for the identity of its installation.
const InstallationMetadata = "timerd-installation"

// DeliverDurable begins the names of the durable consumers of timerd deliver, one for each group; see
// [DeliverConsumer].
const DeliverDurable = "timerd-deliver"

// DeliverGroup is the group of timerd deliver processes whose file names no group.
const DeliverGroup = "deliver"

// DeliverConsumer returns the name of the durable consumer of a group of processes of timerd deliver.
func DeliverConsumer(group string) string {
	if group == DeliverGroup {
		return DeliverDurable
	}
	return DeliverDurable + "~" + EncodeToken(group)
}

// Names has the names of an installation's streams and subjects. The zero value is the default.
type Names struct {
	// Prefix is the first part of every subject, DefaultPrefix if empty. It may hold dots, no wildcards.
	Prefix string
	// Stream is the stream of the firings, DefaultStream if empty. The names of the others begin with it.
	Stream string
}

// SubjectPrefix returns the first part of every subject.
func (n Names) SubjectPrefix() string { return cmp.Or(n.Prefix, DefaultPrefix) }

// FiredStream returns the name of the stream of the firings.
func (n Names) FiredStream() string { return cmp.Or(n.Stream, DefaultStream) }

// RetryStream returns the name of the stream of the retry requests: <stream>_RETRY.
func (n Names) RetryStream() string { return n.FiredStream() + "_RETRY" }

// DeadStream returns the name of the stream of the dead letters: <stream>_DEAD.
func (n Names) DeadStream() string { return n.FiredStream() + "_DEAD" }

// DeliveryStream returns the name of the stream of results of calls of HTTP endpoints: <stream>_DELIVERY.
func (n Names) DeliveryStream() string { return n.FiredStream() + "_DELIVERY" }

// HistoryStream returns the name of the stream of timers' ends without an event, of operators' actions, and of
// incidents: <stream>_HISTORY.
func (n Names) HistoryStream() string { return n.FiredStream() + "_HISTORY" }

// StateStream returns the name of the stream of an installation's own data: <stream>_STATE.
func (n Names) StateStream() string { return n.FiredStream() + "_STATE" }

// Subject returns the subject of k's events of the given kind.
func (n Names) Subject(k Key, kind string) string { return k.Subject(n.SubjectPrefix(), kind) }

// SubjectAll returns the wildcard subject of every event of the given kind.
func (n Names) SubjectAll(kind string) string { return SubjectAll(n.SubjectPrefix(), kind) }

// OperatorSubject returns the subject of an action of operators, or of an incident.
func (n Names) OperatorSubject(action string) string {
	return n.SubjectPrefix() + "." + Operator + "." + EncodeToken(action)
}

// InstallationSubject returns the subject on which the running timerds of an installation answer. No stream takes it.
func (n Names) InstallationSubject(id string) string {
	return n.SubjectPrefix() + ".installation." + EncodeToken(id)
}
