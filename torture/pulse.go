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
	// beat is the interval of the machine's pulse. Each beat syncs the disk, as each firing does.
	beat = 25 * time.Millisecond
	// slowBeat is the delay from which on a beat is recorded.
	slowBeat = 15 * time.Millisecond
)

// pulse records, until ctx ends, the times at which the machine is too busy for punctuality. It asks neither Redis nor
// NATS, because their load may be timerd's fault.
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
		if _, err := f.Write([]byte{1}); err != nil { // a growing file, like the servers'
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		if to := time.Now(); to.Sub(from) > beat+slowBeat {
			w.Write(history.Record{Stall: &history.Stall{From: from.Add(beat).UnixMilli(), To: to.UnixMilli()}})
		}
	}
}
