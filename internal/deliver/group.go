package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/keys"
)

const (
	// rulingKey names the metadata of a group's consumer with the group's file.
	rulingKey = "timerd-deliver"
	// maxRuling limits these metadata, in bytes. JetStream takes 128 KiB.
	maxRuling = 120 << 10
	// ackWait is the time after which a dead process's event goes to another one.
	ackWait = 30 * time.Second
	// maxLeft limits the former files that a group remembers.
	maxLeft = 100
)

// errNoRuling means that a consumer does not belong to a group of timerd deliver.
var errNoRuling = errors.New("it was not made by timerd deliver: give the file another group:, or remove it")

// ruling has a group's file. It is in the metadata of the group's consumer.
type ruling struct {
	Sum     string    `json:"file"`
	Version uint64    `json:"version,omitempty"`
	Changed time.Time `json:"changed"`
	By      string    `json:"by,omitempty"` // the host that first ran with the file
	Covers  coverage  `json:"covers"`
	// Left are the short sums of the group's former files, latest first. A later file time does not make one of them
	// newer: it is only the time of a copy.
	Left []string `json:"left,omitempty"`
}

// replaced returns the former files of the group once it uses the next one. It returns none if the versions differ,
// because then the versions give the order.
func (r *ruling) replaced(next File) []string {
	if next.Version != r.Version {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(r.Left), func(short string) bool { return short == next.String() })
	left = slices.Insert(left, 0, r.file().String())
	return left[:min(len(left), maxLeft)]
}

func (r *ruling) file() File { return File{r.Sum, r.Version, r.Changed} }

// Outdated means that this process takes no events: its group uses another file, and that file is not older than the
// process's own.
type Outdated struct {
	Group string
	Mine  File   // of the process
	Rules File   // of the group
	By    string // the host that first ran with the file
	Left  bool   // the group used this process's file before
}

// Touch reports whether a newer file time is enough to make the process's file count. If not, the file needs a greater
// version.
func (o *Outdated) Touch() bool { return !o.Left && o.Rules.Version == 0 && o.Mine.Version == 0 }

func (o *Outdated) Error() string {
	why := fmt.Sprintf("changed at %s", o.Rules.Changed.UTC().Format(time.RFC3339))
	if o.Rules.Version > 0 || o.Mine.Version > 0 {
		why = fmt.Sprintf("version %d, %s", o.Rules.Version, why)
	}
	if o.Left {
		why += ", in place of this process's"
	}
	fix := "touch it"
	if !o.Touch() {
		fix = fmt.Sprintf("give it a version: over %d", o.Rules.Version)
	}
	return fmt.Sprintf("group %s uses another file, with SHA-256 %s (%s, set by %s), and this process, with %s, "+
		"takes no events: "+
		"bring its file up to date and send SIGHUP; or, for this file to count, %s and send SIGHUP", o.Group, o.Rules,
		why, o.By, o.Mine, fix)
}

// group is the durable consumer shared by a group's processes. An event has one owner: there is one consumer, its
// filter covers all entries of the file, and the entry is chosen at the call.
//
// All use one file, the newest. A process with another one takes no events, because it could neither call nor drop
// events that it does not know. A later copy does not make a former file newer: the group returns to a former file only
// through a process that used the group's file until it was replaced on its disk. JetStream has no compare-and-swap for
// consumers. If two processes write at once, the one with the newer file finds the other's and writes its own again.
type group struct {
	js     jetstream.JetStream
	names  keys.Names
	config *Config
	host   string
}

func newGroup(js jetstream.JetStream, names keys.Names, config *Config) *group {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	return &group{js: js, names: names, config: config, host: host}
}

func (g *group) durable() string { return keys.DeliverConsumer(g.config.Group) }

// join makes the group use this process's file if that file is the newest, and returns the coverage. went is the Sum of
// the file with which this process last took events, "" if there was none. If the group still uses that file, this
// process's file has replaced it on disk. Then this process's file is the newest, whatever its time. wrote reports
// whether join has created or changed the group. Another process may do so at the same time without seeing this, so
// check again before relying on it.
//
// The error is an [*Outdated] if the group uses another file.
func (g *group) join(ctx context.Context, went string) (covers coverage, wrote bool, err error) {
	info, rules, err := g.read(ctx)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return g.create(ctx)
	}
	if err != nil {
		return nil, false, err
	}
	mine := g.config.File
	now := info.TimeStamp
	if rules.Sum == mine.Sum {
		return rules.Covers, false, nil
	}
	fresh := rules.Sum == went
	if fresh || mine.Changed.After(now) { // a clock that is ahead must not block later changes
		mine.Changed = now
	}
	left := slices.Contains(rules.Left, mine.String())
	if left && !fresh || !mine.newerThan(rules.file()) {
		return nil, false, &Outdated{g.config.Group, mine, rules.file(), rules.By, left}
	}
	last, err := g.lastSeq(ctx)
	if err != nil {
		return nil, false, err
	}
	next := ruling{Sum: mine.Sum, Version: mine.Version, Changed: mine.Changed, By: g.host, Left: rules.replaced(mine)}
	next.Covers = rules.Covers.settled(info.AckFloor.Stream).next(g.config.Matches(), last+1)
	have, err := g.settings(info.Config, next)
	if err != nil {
		return nil, false, err
	}
	if _, err := g.js.UpdateConsumer(ctx, g.names.FiredStream(), have); err != nil {
		return nil, false, g.explain(err)
	}
	return next.Covers, true, nil
}

// rules reports whether the group uses this process's file now.
func (g *group) rules(ctx context.Context) (bool, error) {
	_, rules, err := g.read(ctx)
	return err == nil && rules.Sum == g.config.File.Sum, err
}

// read returns the file that the group uses.
func (g *group) read(ctx context.Context) (*jetstream.ConsumerInfo, *ruling, error) {
	c, err := g.js.Consumer(ctx, g.names.FiredStream(), g.durable())
	if err != nil {
		return nil, nil, g.explain(err)
	}
	info := c.CachedInfo()
	var r ruling
	if json.Unmarshal([]byte(info.Config.Metadata[rulingKey]), &r) != nil || r.Sum == "" {
		return nil, nil, g.explain(errNoRuling)
	}
	for i := range r.Covers {
		if r.Covers[i].namespace, err = keys.ReadNamespace(r.Covers[i].Match); err != nil {
			return nil, nil, g.explain(err)
		}
		r.Covers[i].Match = r.Covers[i].namespace.String()
	}
	if info.TimeStamp.IsZero() {
		info.TimeStamp = time.Now()
	}
	return info, &r, nil
}

// create creates the group. If another process does so at the same moment, the caller has to try again.
func (g *group) create(ctx context.Context) (coverage, bool, error) {
	from, err := g.lastSeq(ctx)
	if err != nil {
		return nil, false, err
	}
	config := jetstream.ConsumerConfig{
		Durable: g.durable(), AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
		MaxWaiting: client.MaxWaiting,
	}
	covers := begin(g.config.Matches(), 0)
	switch s := g.config.Start; {
	case s.Now:
		config.DeliverPolicy = jetstream.DeliverNewPolicy
		covers = begin(g.config.Matches(), from+1)
	case !s.At.IsZero():
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &s.At
	}
	mine := g.config.File
	if now := time.Now(); mine.Changed.After(now) {
		mine.Changed = now
	}
	config, err = g.settings(config, ruling{Sum: mine.Sum, Version: mine.Version, Changed: mine.Changed, By: g.host,
		Covers: covers})
	if err != nil {
		return nil, false, err
	}
	_, err = g.js.CreateConsumer(ctx, g.names.FiredStream(), config)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		return g.join(ctx, "")
	}
	if err != nil {
		return nil, false, g.explain(err)
	}
	return covers, true, nil
}

// settings returns the settings of the group's consumer, based on the present ones. It changes only settings that
// JetStream can change for an existing consumer: not the policies of delivery, acknowledgement and replay, the start,
// the storage and max_waiting (error 10012).
func (g *group) settings(c jetstream.ConsumerConfig, r ruling) (jetstream.ConsumerConfig, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return c, err
	}
	if len(text) > maxRuling {
		return c, fmt.Errorf(
			"the file has %d entries, more than a consumer of JetStream can hold: use wider ones, or move some to a "+
				"file of another group",
			len(g.config.Endpoints))
	}
	c.Description = "timerd deliver, group " + g.config.Group
	c.FilterSubject, c.FilterSubjects = "", nil
	for _, n := range g.config.Matches().Apart() {
		c.FilterSubjects = append(c.FilterSubjects, n.Subject(g.names.SubjectPrefix(), keys.Fired))
	}
	slices.Sort(c.FilterSubjects)
	c.Metadata = withKey(c.Metadata, rulingKey, string(text))
	c.AckWait, c.MaxDeliver, c.BackOff = ackWait, -1, nil
	c.MaxAckPending = -1 // a process fetches only events it has places for
	return c, nil
}

func withKey(all map[string]string, name, value string) map[string]string {
	next := map[string]string{name: value}
	for k, v := range all {
		if k != name {
			next[k] = v
		}
	}
	return next
}

// lastSeq returns the sequence of the last event in the stream.
func (g *group) lastSeq(ctx context.Context) (uint64, error) {
	stream, err := g.js.Stream(ctx, g.names.FiredStream())
	if err != nil {
		return 0, fmt.Errorf("stream %s: %w", g.names.FiredStream(), err)
	}
	return stream.CachedInfo().State.LastSeq, nil
}

func (g *group) explain(err error) error {
	return fmt.Errorf("consumer %s of stream %s: %w", g.durable(), g.names.FiredStream(), err)
}
