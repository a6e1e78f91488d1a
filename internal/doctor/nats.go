package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/internal/diag"
	"github.com/timerd-io/timerd/internal/status"
	"github.com/timerd-io/timerd/internal/streams"
)

// eventOverhead is over the size of an event without its payload, with a long key.
const eventOverhead = 8 << 10

// answerTimeout bounds JetStream's answers. A forbidden request is never answered.
const answerTimeout = 2 * time.Second

// NATS looks at a NATS server.
type NATS struct {
	// FreeDisk is the free space for JetStream's files, in bytes; 0 if unknown.
	FreeDisk uint64

	js         jetstream.JetStream
	want       streams.Config
	maxPayload int
	account    *jetstream.AccountInfo // nil if unknown
}

// NewNATS returns a NATS to check, on a connection like timerd's; maxPayload is a timer's limit, in bytes.
func NewNATS(js jetstream.JetStream, want streams.Config, maxPayload int) *NATS {
	return &NATS{js: js, want: want, maxPayload: maxPayload}
}

// Check returns the findings about NATS. state has the findings of timerd status.
func (d *NATS) Check(ctx context.Context, state diag.Findings) diag.Findings {
	return diag.Run(d.checks(), ctx, state)
}

// checks returns the table of the checks of NATS.
func (d *NATS) checks() []diag.Check[context.Context] {
	const jetStream = "jetstream"
	known := []string{diag.CheckNATS, jetStream}
	return []diag.Check[context.Context]{
		{Name: "nats version", Run: d.version},
		{Name: jetStream, Needs: []string{diag.CheckNATS}, Run: d.storage},
		{Name: "nats limits", Needs: known, Run: d.limits},
		{Name: diag.CheckStreams, Needs: known, Run: d.replicas},
		{Name: "stream growth", Needs: known, Run: d.growth},
		{Name: "nats clock", Needs: known, Run: d.clock},
	}
}

func (d *NATS) version(_ context.Context, r *diag.Findings) {
	version := d.js.Conn().ConnectedServerVersion()
	if fault, ok := errors.AsType[*streams.Fault](streams.CheckVersion(version)); ok {
		r.Add(fault.Finding(""))
		return
	}
	r.OK("nats-server %s at %s", version, d.js.Conn().ConnectedUrlRedacted())
}

// storage judges the account of JetStream. The checks of timerd status report streams without a leader, and a full
// store.
func (d *NATS) storage(ctx context.Context, r *diag.Findings) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	account, err := streams.CheckAccount(ctx, d.js)
	if streams.NotUp(err) {
		return
	}
	if err != nil {
		r.Add(status.NoJetStream(err))
		return
	}
	if streams.AccountFullness(account, 0) != nil {
		return
	}
	d.account = account
	used, most := account.Store, account.Limits.MaxStore
	switch {
	case most == 0:
		r.Fail("give the account file storage: max_file", "the account has no file storage")
	case most > 0 && used > uint64(most)/10*9:
		r.Warn("give the account more file storage, or purge streams that nobody needs",
			"%d of %d bytes of file storage are used: a full store delays every timer", used, most)
	default:
		r.OK("enabled; %d streams, %d bytes stored", account.Streams, used)
	}
}

func (d *NATS) limits(_ context.Context, r *diag.Findings) {
	most := d.js.Conn().MaxPayload()
	// In base64 a payload grows by a third; JSON text rarely by more.
	if need := int64(d.maxPayload)/3*4 + eventOverhead; need > most {
		r.Warn(fmt.Sprintf("max_payload: %d in the server's configuration, or a TIMERD_MAX_PAYLOAD of at most %d", need,
			(most-eventOverhead)/4*3),
			"max_payload is %d bytes: timers with a payload near TIMERD_MAX_PAYLOAD=%d fire without data", most,
			d.maxPayload)
		return
	}
	r.OK("max_payload is %d bytes", most)
}

// replicas reports the streams on a single server of a cluster.
func (d *NATS) replicas(ctx context.Context, r *diag.Findings) {
	if d.account == nil {
		return
	}
	for _, name := range []string{d.want.FiredStream(), d.want.RetryStream(), d.want.DeadStream(),
		d.want.DeliveryStream()} {
		stream, err := d.js.Stream(ctx, name)
		if err != nil {
			continue // it is missing, or State reports the reason
		}
		if info := stream.CachedInfo(); info.Cluster != nil && info.Cluster.Name != "" && info.Config.Replicas <= 1 {
			r.Warn("set TIMERD_STREAM_REPLICAS=3 for new streams, and for this one: nats stream edit "+name+
				" --replicas 3 --force",
				"%s: one server of the NATS cluster %s keeps it, and it takes nothing while that one is away", name,
				info.Cluster.Name)
		}
	}
}

// clock compares the clock of NATS, read from an answer about a stream, with this machine's.
func (d *NATS) clock(ctx context.Context, r *diag.Findings) {
	if d.account == nil {
		return
	}
	before := time.Now()
	stream, err := d.js.Stream(ctx, d.want.FiredStream())
	after := time.Now()
	if err != nil || stream.CachedInfo().TimeStamp.IsZero() {
		return
	}
	r.Skew("NATS", before, after, stream.CachedInfo().TimeStamp)
}
