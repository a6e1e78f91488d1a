package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/internal/textfile"
	"github.com/timerd-io/timerd/keys"
)

// setFrom sets the timers of a file, each line for itself.
func setFrom(cmd *cobra.Command, flags setFlags) error {
	return withRedis(cmd, func(ctx context.Context, rdb redis.UniversalClient) error {
		in, err := openFrom(cmd, flags.from)
		if err != nil {
			return err
		}
		defer func() { _ = in.Close() }() // it was only read
		b := fileSetter{cmd: cmd, timers: client.New(rdb), asJSON: flags.asJSON}
		err = b.setAll(ctx, in)
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

// openFrom opens a file, or standard input for -.
func openFrom(cmd *cobra.Command, name string) (io.ReadCloser, error) {
	if name == "-" {
		sayReading(cmd, "timers, a JSON object in each line,")
		return openStdin(cmd), nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--from: %w", err)
	}
	return file, nil
}

// fileSetter sets timers of lines, some in each round trip.
type fileSetter struct {
	cmd    *cobra.Command
	timers *client.Timers
	asJSON bool

	lines           []bulkLine // read, and not set yet
	set, there, bad int
}

// bulkLine is a line and what it says.
type bulkLine struct {
	number  int
	setting client.Setting
	attempt int   // 0: none is said
	fault   error // why it sets nothing
}

// bulkLines is how many lines are set together at most.
const bulkLines = 512

// setAll sets the timers of all lines. Where no more lines have come yet, it sets those that have: what follows may take
// its time. It stops at an error that is not that of a line.
func (b *fileSetter) setAll(ctx context.Context, in io.Reader) error {
	reader := bufio.NewReaderSize(in, 64<<10)
	for number := 1; ; number++ {
		line, err := reader.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(b.flush(ctx), fmt.Errorf("line %d and the rest: %w", number, err))
		}
		line, notText := textfile.Bare(line)
		if notText != nil {
			return errors.Join(b.flush(ctx), fmt.Errorf("line %d and the rest: %w", number, notText))
		}
		if len(line) > 0 {
			l := bulkLine{number: number}
			l.setting, l.attempt, l.fault = parseSetLine(line)
			b.lines = append(b.lines, l)
		}
		if err != nil {
			return b.flush(ctx)
		}
		if len(b.lines) == bulkLines || !hasLine(reader) {
			if err := b.flush(ctx); err != nil {
				return err
			}
		}
	}
}

// hasLine tells whether another line has been read already.
func hasLine(r *bufio.Reader) bool {
	text, _ := r.Peek(r.Buffered()) // what is there never fails
	return bytes.IndexByte(text, '\n') >= 0
}

// flush sets the timers of the lines that were read, and reports those that are bad.
func (b *fileSetter) flush(ctx context.Context) error {
	var settings []client.Setting
	for _, l := range b.lines {
		if l.fault == nil {
			settings = append(settings, l.setting)
		}
	}
	results, _ := b.timers.SetMany(ctx, settings) // each result has its own error
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
		case errors.Is(fault, client.ErrNotSet):
			b.there++
		case l.fault != nil || errors.Is(fault, client.ErrInvalid):
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
	b.lines = b.lines[:0]
	return failed
}

// setLine is a line of timerd set --from.
type setLine struct {
	Key           string          `json:"key"`
	Payload       json.RawMessage `json:"payload"`
	PayloadBase64 *string         `json:"payload_base64"`
	PX            *int64          `json:"px"` // ms
	At            *int64          `json:"at"` // unix ms
	Attempt       *int            `json:"attempt"`
	NX            bool            `json:"nx"`
	Late          *int64          `json:"late"` // ms
	DropLate      bool            `json:"drop_late"`
}

// parseSetLine reads a line of timerd set --from. The attempt is 0 if the line has none.
func parseSetLine(line []byte) (s client.Setting, attempt int, err error) {
	if !utf8.Valid(line) {
		return s, 0, errors.New("it is not UTF-8: use payload_base64 for binary data")
	}
	var l setLine
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&l); err != nil {
		return s, 0, jsonFault(err)
	}
	if rest := bytes.TrimSpace(line[decoder.InputOffset():]); len(rest) > 0 {
		return s, 0, fmt.Errorf("want one JSON object, got %q after it", clip(string(rest)))
	}
	if _, err := keys.Parse(l.Key); err != nil {
		return s, 0, fmt.Errorf("key %q: %w", keys.Abbreviate(l.Key), err)
	}
	s.Key = l.Key
	if s.When, err = l.when(); err != nil {
		return s, 0, err
	}
	if s.Payload, err = l.payload(); err != nil {
		return s, 0, err
	}
	if l.Attempt != nil {
		if attempt = *l.Attempt; attempt < 1 || attempt > math.MaxInt32 {
			return s, 0, fmt.Errorf("attempt is %d: want a number from 1 to %d", attempt, math.MaxInt32)
		}
		s.Options = append(s.Options, client.Attempt(attempt))
	}
	if l.NX {
		s.Options = append(s.Options, client.NX())
	}
	option, err := l.late()
	s.Options = append(s.Options, option...)
	return s, attempt, err
}

// late returns the option for a limit, if there is one.
func (l setLine) late() ([]client.SetOption, error) {
	switch {
	case l.Late == nil && l.DropLate:
		return nil, errors.New("drop_late goes with late")
	case l.Late == nil:
		return nil, nil
	case *l.Late < 0 || *l.Late > policy.Longest.Milliseconds():
		return nil, fmt.Errorf("late is %d: want milliseconds from 0, for no limit, to %d", *l.Late, policy.Longest.Milliseconds())
	}
	most := time.Duration(*l.Late) * time.Millisecond
	if l.DropLate {
		return []client.SetOption{client.DropLate(most)}, nil
	}
	return []client.SetOption{client.Late(most)}, nil
}

func (l setLine) when() (client.When, error) {
	switch {
	case l.PX == nil && l.At == nil:
		return client.When{}, errors.New("no time is given: want px or at")
	case l.PX != nil && l.At != nil:
		return client.When{}, errors.New("px and at exclude each other")
	case l.At != nil:
		return client.At(time.UnixMilli(*l.At)), nil
	case *l.PX < 1:
		return client.When{}, fmt.Errorf("px is %d: want 1 or more", *l.PX)
	case *l.PX > math.MaxInt64/int64(time.Millisecond):
		return client.When{}, fmt.Errorf("px is %d: want at most 10 years", *l.PX)
	}
	return client.After(time.Duration(*l.PX) * time.Millisecond), nil
}

func (l setLine) payload() ([]byte, error) {
	switch {
	case l.Payload != nil && l.PayloadBase64 != nil:
		return nil, errors.New("payload and payload_base64 exclude each other")
	case l.PayloadBase64 != nil:
		payload, err := base64.StdEncoding.DecodeString(*l.PayloadBase64)
		if err != nil {
			err = fmt.Errorf("payload_base64: %w", err)
		}
		return payload, err
	case len(l.Payload) > 0 && l.Payload[0] == '"':
		var text string
		err := json.Unmarshal(l.Payload, &text)
		return []byte(text), err
	}
	return l.Payload, nil
}

// jsonFault says what is wrong with a line of JSON in words of the line.
func jsonFault(err error) error {
	if mistake, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		want := "a JSON object"
		switch mistake.Type.Kind() {
		case reflect.String:
			want = "a string"
		case reflect.Int, reflect.Int64:
			want = "a whole number"
		case reflect.Bool:
			want = "true or false"
		}
		if mistake.Field == "" {
			return fmt.Errorf("want %s, got %s", want, mistake.Value)
		}
		return fmt.Errorf("%s: want %s, got %s", mistake.Field, want, mistake.Value)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("want a JSON object, got the beginning of one")
	}
	return fmt.Errorf("want a JSON object: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// clip cuts what a message quotes to a few characters.
func clip(s string) string { return cutText(s, 40, false) }
