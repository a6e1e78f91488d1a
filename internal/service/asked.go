package service

import (
	"context"
	"time"

	"github.com/timerd-io/timerd/internal/backoff"
	"github.com/timerd-io/timerd/reconciler"
)

// askedEvery is how often to look whether a command asks for an audit, and to tell how far one is.
const askedEvery = time.Second

// auditAsked carries out the audits that commands ask for, of the nodes of which this timerd is the first, until ctx
// ends.
func (s *nodes) auditAsked(ctx context.Context) {
	begun := map[string]string{} // the id of the last audit that was begun here, by the name of its node
	for beat := 1; backoff.Sleep(ctx, askedEvery); beat++ {
		s.answerAsked(ctx, begun, beat)
	}
}

// answerAsked begins what is asked for, and tells how far each audit is. What fails is tried again the next time.
func (s *nodes) answerAsked(ctx context.Context, begun map[string]string, beat int) {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	audits, err := s.schedule.AskedAudits(ctx)
	if err != nil {
		s.log.Debug("cannot tell whether an audit is asked for", "err", err)
		return
	}
	for node, n := range s.list() {
		id := audits.Of(node.Name())
		if _, taken := audits.Progress(node.Name(), id); id != "" && id != begun[node.Name()] && !taken && n.rec.IsFirst() {
			s.log.Info("an audit is asked for", "redis", node.Name())
			begun[node.Name()] = id
			n.rec.Audit(id)
		}
		now := n.rec.Asked()
		if told, known := audits.Progress(node.Name(), now.ID); now.ID == "" || known && told.Done || !known && now.ID != id {
			continue
		}
		if err := s.tellAsked(ctx, node.Name(), now, beat); err != nil {
			s.log.Debug("cannot tell how far an audit is", "err", err)
		}
	}
}

// tellAsked tells how far an audit of a node is.
func (s *nodes) tellAsked(ctx context.Context, node string, asked reconciler.Asked, beat int) error {
	asked.Instance, asked.Beat = s.self.Instance, beat
	return s.schedule.TellAudit(ctx, node, asked.ID, asked.AuditProgress)
}
