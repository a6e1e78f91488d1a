package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/timerd-io/timerd/torture/internal/history"
)

const (
	// beat is how often the machine's pulse is felt, with a sync of the disk, as each firing needs some.
	beat = 25 * time.Millisecond
	// slow is by how much a beat has to be late to be written down.
	slow = 15 * time.Millisecond
)

// pulse writes down when the machine is too busy for anybody to be on time, until ctx ends. It asks neither Redis nor
// NATS: what keeps those busy may be timerd's fault.
func pulse(ctx context.Context, dir string, w *history.Writer) (err error) {
	f, err := os.Create(filepath.Join(dir, "pulse"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for {
		from := time.Now()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(beat):
		}
		if _, err := f.Write([]byte{1}); err != nil { // a file that grows, as those of the servers do
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if to := time.Now(); to.Sub(from) > beat+slow {
			w.Write(history.Record{Stall: &history.Stall{From: from.Add(beat).UnixMilli(), To: to.UnixMilli()}})
		}
	}
}
