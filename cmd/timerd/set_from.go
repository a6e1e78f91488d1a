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

// setFrom sets the timers of a file, line by line.
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

// openFrom opens a file behind its finished lines, or standard input for -.
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

// fileSetter sets timers of lines, some in each round trip. It reads the next ones meanwhile.
type fileSetter struct {
	cmd    *cobra.Command
	rdb    redis.UniversalClient
	timers *client.Timers
	asJSON bool
	note   *fileNote // nil for standard input

	schedule *schedule.Schedule // for exported timers; nil before the first one
	most     int                // bytes of their payloads

	lines           []bulkLine // read, and not sent yet
	bytes           int        // of these lines
	sent            *bulk      // nil if none is pending
	set, there, bad int
}

// bulk is a batch of lines that is being set.
type bulk struct {
	lines []bulkLine
	line  int   // number of its last line
	end   int64 // the offset behind that line

	done    chan struct{} // closed once the results are complete
	results []client.SetResult
	err     error // of the whole batch
}

// bulkLine is a line with its content.
type bulkLine struct {
	number int
	parsedLine
	fault error // why the line sets no timer
}

// Limits of the lines in one batch, and of one line, in bytes.
const (
	bulkLines   = 512
	bulkBytes   = 4 << 20
	longestLine = 64 << 20
)

// setAll sets the timers of all lines. It does not wait for further lines: it sets the ones it has. It stops at an
// error that is not about a line.
func (b *fileSetter) setAll(ctx context.Context, in io.Reader) error {
	reader := bufio.NewReaderSize(in, 64<<10)
	number, offset := 1, int64(0)
	if b.note != nil {
		number, offset = b.note.Line+1, b.note.Offset
	}
	for ; ; number++ {
		size, isLast, err := b.read(reader, number)
		offset += size
		if err != nil {
			failed := b.settle()
			if failed == nil {
				b.send(ctx, number-1, offset-size)
				failed = b.settle()
			}
			return errors.Join(failed, fmt.Errorf("line %d and the rest: %w", number, err))
		}
		waits := b.note == nil && !isLast && !hasLine(reader) // a file never waits for lines
		if isLast || waits || len(b.lines) >= bulkLines || b.bytes >= bulkBytes {
			if err := b.settle(); err != nil {
				return err
			}
			b.send(ctx, number, offset)
		}
		if isLast || waits {
			if err := b.settle(); isLast || err != nil {
				return err
			}
		}
	}
}

// read reads the next line, and returns its size in bytes. Its error ends the file before the line.
func (b *fileSetter) read(reader *bufio.Reader, number int) (size int64, isLast bool, err error) {
	line, size, err := readLine(reader)
	if err != nil && !errors.Is(err, io.EOF) {
		return size, true, err
	}
	isLast = err != nil
	if line, err = textfile.Bare(line); err != nil || len(line) == 0 {
		return size, isLast, err
	}
	l := bulkLine{number: number}
	if size > longestLine {
		l.fault = fmt.Errorf("it has %d bytes: want at most %d", size, longestLine)
	} else {
		l.parsedLine, l.fault = parseSetLine(line)
	}
	b.lines, b.bytes = append(b.lines, l), b.bytes+len(line)
	return size, isLast, nil
}

// readLine reads a line with its end. Of a line over longestLine it returns the beginning. size is in bytes.
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
	text, _ := r.Peek(r.Buffered()) // buffered bytes never fail
	return bytes.IndexByte(text, '\n') >= 0
}

// send begins to set the timers of the lines read. line is the last one finished with them, and end the offset behind
// it. No other batch may be pending.
func (b *fileSetter) send(ctx context.Context, line int, end int64) {
	sent := &bulk{lines: b.lines, line: line, end: end, done: make(chan struct{})}
	b.sent, b.lines, b.bytes = sent, nil, 0
	go func() {
		defer close(sent.done)
		sent.results, sent.err = b.setLines(ctx, sent.lines)
	}()
}

// settle waits for the pending batch, reports its bad lines, and notes that its lines are done.
func (b *fileSetter) settle() error {
	sent := b.sent
	if sent == nil {
		return nil
	}
	b.sent = nil
	<-sent.done
	if sent.err != nil {
		return sent.err
	}
	if err := b.report(sent); err != nil {
		return err
	}
	b.note.done(b, sent.line, sent.end)
	return nil
}

// report counts the outcomes of lines, and reports the bad ones.
func (b *fileSetter) report(sent *bulk) error {
	var failed error
	unknown, next := 0, 0
	for _, l := range sent.lines {
		var result client.SetResult
		if l.fault == nil {
			result = sent.results[next]
			next++
		}
		switch fault := errors.Join(l.fault, result.Err); {
		case fault == nil:
			b.set++
			if b.asJSON {
				failed = errors.Join(failed, writeJSON(b.cmd.OutOrStdout(),
					newTimerView(l.setting.Key, result.Due, l.attempt)))
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
	return failed
}

// isLineFault reports whether an error is about one line, so that others can be set.
func isLineFault(err error) bool {
	return errors.Is(err, client.ErrInvalid) || errors.Is(err, schedule.ErrTooManyRetries) ||
		errors.Is(err, schedule.ErrKeyRights) || errors.Is(err, schedule.ErrGuardSlot) ||
		errors.Is(err, schedule.ErrExported)
}

// setLines sets the timers of the lines without a fault, in their order, and returns a result for each.
func (b *fileSetter) setLines(ctx context.Context, lines []bulkLine) (results []client.SetResult, err error) {
	for len(lines) > 0 {
		var settings []client.Setting
		var imported []schedule.Imported
		next := 0
		for ; next < len(lines) && (lines[next].imported != nil) == (lines[0].imported != nil); next++ {
			switch l := lines[next]; {
			case l.fault != nil:
			case l.imported != nil:
				imported = append(imported, *l.imported)
			default:
				settings = append(settings, l.setting)
			}
		}
		lines = lines[next:]
		if len(imported) > 0 && b.schedule == nil {
			s := schedule.Open(ctx, b.rdb, schedule.DefaultMaxPayload)
			if b.most, err = s.PayloadLimit(ctx); err != nil {
				return nil, err
			}
			b.schedule = s
		}
		if len(imported) > 0 {
			for i, err := range b.schedule.Import(ctx, imported, b.most) {
				results = append(results, client.SetResult{Due: schedule.Millis(imported[i].Due).Time(), Err: err})
			}
		}
		if len(settings) > 0 {
			set, _ := b.timers.SetMany(ctx, settings) // each result has its own error
			results = append(results, set...)
		}
	}
	return results, nil
}
