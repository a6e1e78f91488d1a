package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/textfile"
	"github.com/timerd-io/timerd/schedule"
)

// setFrom sets the timers of a file, each line for itself.
func setFrom(cmd *cobra.Command, flags setFlags) error {
	return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		in, note, err := openFrom(cmd, flags.from)
		if err != nil {
			return err
		}
		defer func() { _ = in.Close() }() // it was only read
		b := fileSetter{cmd: cmd, rdb: rdb, timers: client.New(rdb), asJSON: flags.asJSON, note: note}
		if note != nil {
			b.set, b.there, b.bad = note.Set, note.There, note.Bad
		}
		err = b.setAll(ctx, in)
		err = errors.Join(err, note.close(err == nil))
		if err != nil && ctx.Err() != nil && !errors.Is(err, errInterrupted) {
			err = fmt.Errorf("interrupted: %w", err)
		}
		summary := fmt.Sprintf("%d set, %d there already, %d bad", b.set, b.there, b.bad)
		if flags.asJSON {
			fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %s\n", summary)
		} else {
			_, printErr := fmt.Fprintln(cmd.OutOrStdout(), summary)
			err = errors.Join(err, printErr)
		}
		warnIfUnattended(ctx, cmd, rdb)
		if err == nil && b.bad > 0 {
			return exitCode(exitFailed)
		}
		return err
	})
}

// openFrom opens a file behind the lines that are done, or standard input for -.
func openFrom(cmd *cobra.Command, name string) (io.ReadCloser, *fileNote, error) {
	if name == "-" {
		sayReading(cmd, "timers, a JSON object in each line,")
		return openStdin(cmd), nil, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, nil, fmt.Errorf("--from: %w", err)
	}
	note, err := readNote(file, name)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("--from: %w", err), file.Close())
	}
	if note != nil && note.Line > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "timerd: going on behind line %d, as %s says\n", note.Line, note.path)
	}
	return file, note, nil
}

// fileSetter sets timers of lines, some in each round trip.
type fileSetter struct {
	cmd    *cobra.Command
	rdb    redis.UniversalClient
	timers *client.Timers
	asJSON bool
	note   *fileNote // nil for standard input

	schedule *schedule.Schedule // for exported timers; nil before the first of them
	most     int                // bytes of their payloads

	lines           []bulkLine // read, and not set yet
	bytes           int        // of these
	set, there, bad int
}

// bulkLine is a line and what it says.
type bulkLine struct {
	number int
	parsedLine
	fault error // why it sets nothing
}

// Bounds of the lines that are set together, and of one line, in bytes.
const (
	bulkLines   = 512
	bulkBytes   = 4 << 20
	longestLine = 64 << 20
)

// setAll sets the timers of all lines. Where no more lines have come yet, it sets those that have: what follows may take
// its time. It stops at an error that is not that of a line.
func (b *fileSetter) setAll(ctx context.Context, in io.Reader) error {
	reader := bufio.NewReaderSize(in, 64<<10)
	first, offset := 1, int64(0)
	if b.note != nil {
		first, offset = b.note.Line+1, b.note.Offset
	}
	for number := first; ; number++ {
		line, size, err := readLine(reader)
		if err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(b.flush(ctx), fmt.Errorf("line %d and the rest: %w", number, err))
		}
		line, notText := textfile.Bare(line)
		if notText != nil {
			return errors.Join(b.flush(ctx), fmt.Errorf("line %d and the rest: %w", number, notText))
		}
		l := bulkLine{number: number}
		if size > longestLine {
			l.fault = fmt.Errorf("it has %d bytes: want at most %d", size, longestLine)
		} else if len(line) > 0 {
			l.parsedLine, l.fault = parseSetLine(line)
		}
		if n := len(b.lines); n > 0 && (b.lines[n-1].imported == nil) != (l.imported == nil) { // in the order of the file
			if err := b.flush(ctx); err != nil {
				return err
			}
		}
		if len(line) > 0 {
			b.lines = append(b.lines, l)
			b.bytes += len(line)
		}
		offset += size
		if err != nil {
			return b.flush(ctx)
		}
		if len(b.lines) >= bulkLines || b.bytes >= bulkBytes || !hasLine(reader) {
			if err := b.flush(ctx); err != nil {
				return err
			}
			b.note.done(b, number, offset)
		}
	}
}

// readLine reads a line with its end. Of one that is longer than longestLine it returns the beginning. size is in
// bytes.
func readLine(r *bufio.Reader) (line []byte, size int64, err error) {
	for {
		part, err := r.ReadSlice('\n')
		size += int64(len(part))
		if len(line) <= longestLine {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, size, err
		}
	}
}

// hasLine reports whether another line has been read already.
func hasLine(r *bufio.Reader) bool {
	text, _ := r.Peek(r.Buffered()) // what is there never fails
	return bytes.IndexByte(text, '\n') >= 0
}

// flush sets the timers of the lines that were read, and reports those that are bad.
func (b *fileSetter) flush(ctx context.Context) error {
	results, err := b.setLines(ctx)
	if err != nil {
		return err
	}
	var failed error
	unknown, next := 0, 0
	for _, l := range b.lines {
		var result client.SetResult
		if l.fault == nil {
			result = results[next]
			next++
		}
		switch fault := errors.Join(l.fault, result.Err); {
		case fault == nil:
			b.set++
			if b.asJSON {
				failed = errors.Join(failed, writeJSON(b.cmd.OutOrStdout(), newTimerView(l.setting.Key, result.Due, l.attempt)))
			}
		case errors.Is(fault, client.ErrNotSet), errors.Is(fault, schedule.ErrThere):
			b.there++
		case l.fault != nil || isLineFault(fault):
			b.bad++
			fmt.Fprintf(b.cmd.ErrOrStderr(), "timerd: line %d: %v\n", l.number, fault)
		default:
			if unknown++; unknown == 1 {
				failed = errors.Join(failed, fmt.Errorf("line %d: %w", l.number, fault))
			}
		}
	}
	if unknown > 0 {
		failed = fmt.Errorf("%w\nIt, the next %d lines and the rest may not be set: set them again", failed, unknown-1)
	}
	b.lines, b.bytes = b.lines[:0], 0
	return failed
}

// isLineFault reports whether an error is that of a line, and others can be set.
func isLineFault(err error) bool {
	return errors.Is(err, client.ErrInvalid) || errors.Is(err, schedule.ErrTooManyRetries) || errors.Is(err, schedule.ErrKeyRights) ||
		errors.Is(err, schedule.ErrExported)
}

// setLines sets the timers of the lines without a fault: either all are exported timers, or none is. It returns a
// result for each.
func (b *fileSetter) setLines(ctx context.Context) ([]client.SetResult, error) {
	var settings []client.Setting
	var imported []schedule.Imported
	for _, l := range b.lines {
		switch {
		case l.fault != nil:
		case l.imported != nil:
			imported = append(imported, *l.imported)
		default:
			settings = append(settings, l.setting)
		}
	}
	if len(imported) == 0 {
		results, _ := b.timers.SetMany(ctx, settings) // each result has its own error
		return results, nil
	}
	if b.schedule == nil {
		s := schedule.New(b.rdb, schedule.DefaultMaxPayload)
		most, err := s.PayloadLimit(ctx)
		if err != nil {
			return nil, err
		}
		b.schedule, b.most = s, most
	}
	results := make([]client.SetResult, len(imported))
	for i, err := range b.schedule.Import(ctx, imported, b.most) {
		results[i] = client.SetResult{Due: schedule.Millis(imported[i].Due).Time(), Err: err}
	}
	return results, nil
}
