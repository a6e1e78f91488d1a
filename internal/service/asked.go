package service

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/reconciler"
)

// askedEvery is the interval of looks for audits requested by commands, and of their progress reports.
const askedEvery = time.Second

// auditAsked carries out the audits that commands request, until ctx ends. It does so for the nodes with this timerd as
// the first.
func (s *nodes) auditAsked(ctx context.Context) {
	begun := map[string]string{} // the id of the last audit begun here, by node
	for beat := 1; backoff.Sleep(ctx, askedEvery); beat++ {
		s.answerAsked(ctx, begun, beat)
	}
}

// answerAsked begins the requested audits, and reports the progress of each. A failure is retried the next time.
func (s *nodes) answerAsked(ctx context.Context, begun map[string]string, beat int) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	audits, err := s.schedule.AskedAudits(ctx)
	if err != nil {
		s.log.Debug("cannot read the requests for audits", "err", err)
		return
	}
	for node, n := range s.list() {
		id := audits.Of(node.Name())
		if _, taken := audits.Progress(node.Name(), id); id != "" && id != begun[node.Name()] && !taken &&
			n.rec.IsFirst() {
			s.log.Info("audit requested", "redis", node.Name())
			begun[node.Name()] = id
			n.rec.Audit(id)
		}
		now := n.rec.Asked()
		if told, known := audits.Progress(node.Name(), now.ID); now.ID == "" || known && told.Done || !known &&
			now.ID != id {
			continue
		}
		if err := s.tellAsked(ctx, node.Name(), now, beat); err != nil {
			s.log.Debug("cannot report the progress of an audit", "err", err)
		}
	}
}

// tellAsked reports the progress of a node's audit.
func (s *nodes) tellAsked(ctx context.Context, node string, asked reconciler.Asked, beat int) error {
	asked.Instance, asked.Beat = s.self.Instance, beat
	return s.schedule.TellAudit(ctx, node, asked.ID, asked.AuditProgress)
}
