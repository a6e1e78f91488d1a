package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/internal/policy"
	"github.com/timerd-io/timerd/keys"
	"github.com/timerd-io/timerd/schedule"
)

// timerLine is a timer as a line of JSON, read by timerd set --from and written by timerd export. A line with a due
// time is an exported timer and is set as it was; a line with px or at is a new timer.
type timerLine struct {
	Key           string          `json:"key,omitempty"`
	KeyBase64     *string         `json:"key_base64,omitempty"`
	State         string          `json:"state,omitempty"` // of an exported one, for the reader
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 *string         `json:"payload_base64,omitempty"`
	PX            *int64          `json:"px,omitempty"` // ms
	At            *int64          `json:"at,omitempty"` // unix ms
	NX            bool            `json:"nx,omitempty"`
	schedule.Exported
}

// parsedLine is the timer of a line of timerd set --from.
type parsedLine struct {
	setting  client.Setting
	attempt  int                // 0: none given
	imported *schedule.Imported // of an exported timer, which is set instead
}

// parseSetLine reads a line of timerd set --from.
func parseSetLine(line []byte) (p parsedLine, err error) {
	if !utf8.Valid(line) {
		return p, errors.New("it is not UTF-8: use key_base64 and payload_base64 for binary data")
	}
	var l timerLine
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&l); err != nil {
		return p, jsonFault(err)
	}
	if rest := bytes.TrimSpace(line[decoder.InputOffset():]); len(rest) > 0 {
		return p, fmt.Errorf("want one JSON object, got %q after it", clip(string(rest)))
	}
	key, err := l.key()
	if err != nil {
		return p, err
	}
	payload, err := l.payload()
	if err != nil {
		return p, err
	}
	if p.attempt, err = l.attempt(); err != nil {
		return p, err
	}
	p.setting = client.Setting{Key: key.String(), Payload: payload}
	if l.Due != 0 {
		p.imported = &schedule.Imported{Key: key, Payload: payload, Exported: l.Exported}
		if l.PX != nil || l.At != nil || l.NX {
			return p, errors.New("due is for exported timers: it excludes px, at and nx")
		}
		return p, p.imported.Check()
	}
	own := schedule.Exported{Attempt: l.Attempt, Late: l.Late, DropLate: l.DropLate, Unless: l.Unless, If: l.If}
	if l.Exported != own || l.State != "" {
		return p, errors.New("it has a field of an exported timer and no due: take the line as timerd export wrote it")
	}
	if p.setting.When, err = l.when(); err != nil {
		return p, err
	}
	if l.Attempt != nil {
		p.setting.Options = append(p.setting.Options, client.Attempt(p.attempt))
	}
	if l.NX {
		p.setting.Options = append(p.setting.Options, client.NX())
	}
	guards, err := l.OwnGuards()
	if err != nil {
		return p, err
	}
	if guards.Unless != "" {
		p.setting.Options = append(p.setting.Options, client.Unless(guards.Unless))
	}
	if guards.If != "" {
		p.setting.Options = append(p.setting.Options, client.If(guards.If))
	}
	option, err := l.late()
	p.setting.Options = append(p.setting.Options, option...)
	return p, err
}

func (l timerLine) key() (keys.Key, error) {
	name := l.Key
	if l.KeyBase64 != nil {
		if l.Key != "" {
			return keys.Key{}, errors.New("key and key_base64 exclude each other")
		}
		text, err := base64.StdEncoding.DecodeString(*l.KeyBase64)
		if err != nil {
			return keys.Key{}, fmt.Errorf("key_base64: %w", err)
		}
		name = string(text)
	}
	key, err := keys.Parse(name)
	if err != nil {
		return keys.Key{}, fmt.Errorf("key %q: %w", keys.Abbreviate(name), err)
	}
	return key, nil
}

// attempt returns the attempt, or 0 if the line has none.
func (l timerLine) attempt() (int, error) {
	if l.Attempt == nil {
		return 0, nil
	}
	if n := *l.Attempt; n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("attempt is %d: want a number from 1 to %d", n, math.MaxInt32)
	}
	return *l.Attempt, nil
}

// late returns the option for a limit, if there is one.
func (l timerLine) late() ([]client.SetOption, error) {
	switch {
	case l.Late == nil && l.DropLate:
		return nil, errors.New("drop_late goes with late")
	case l.Late == nil:
		return nil, nil
	case *l.Late < 0 || *l.Late > policy.Longest.Milliseconds():
		return nil, fmt.Errorf("late is %d: want milliseconds from 0, for no limit, to %d", *l.Late,
			policy.Longest.Milliseconds())
	}
	most := time.Duration(*l.Late) * time.Millisecond
	if l.DropLate {
		return []client.SetOption{client.DropLate(most)}, nil
	}
	return []client.SetOption{client.Late(most)}, nil
}

func (l timerLine) when() (client.When, error) {
	switch {
	case l.PX == nil && l.At == nil:
		return client.When{}, errors.New("no time is given: want px or at, or due of an exported timer")
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

func (l timerLine) payload() ([]byte, error) {
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

// jsonFault names the fault of a line of JSON in words of the line.
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

// clip cuts a quotation in a message to a few characters.
func clip(s string) string { return cutText(s, 40, false) }
