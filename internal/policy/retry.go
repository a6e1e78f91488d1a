package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/timerd-io/timerd/keys"
)

// DefaultRetry is the policy of keys without a matching entry in the configured list, in the form that ParseRetries
// reads.
const DefaultRetry = "*=exp(10s,2,1h,12)~10%"

// Bounds of a [Retry], besides [Longest].
const (
	MaxRetries = 10_000
	MinDelay   = time.Millisecond
	MaxFactor  = 1_000
)

// Retry is the schedule of a timer's retries after its consumer failed. The zero Retry has none.
type Retry struct {
	base   string // as written, without the jitter
	delays []time.Duration
	jitter float64 // percent
}

// ParseRetries reads a list such as
//
//	app1:trans:notice=wechatpay; shop=10s,30s,2m~10%; *=exp(10s,2,1h,12)
//
// A policy is the name of a preset (wechatpay, alipay, adyen or standard-webhooks), a list of delays, or
// exp(first,factor,max,retries): delays that begin with first and grow by factor up to max. ~10% appended makes each
// delay longer by up to 10 %, and replaces a preset's own jitter. Delays are Go durations, rounded to
// milliseconds. A namespace is as for keys.ParseNamespace. Empty entries are ignored.
//
// DefaultRetry is appended if the list has no entry that matches every key, so an empty list means DefaultRetry. The
// error joins one for each fault, with its column, in bytes from 1, and the right form.
func ParseRetries(s string) (Rules[Retry], error) {
	var p retryParser
	rules := p.list(s)
	if len(p.faults) > 0 {
		return nil, errors.Join(p.faults...)
	}
	all := func(r Rule[Retry]) bool { return r.Namespace == keys.Namespace{} }
	if !slices.ContainsFunc(rules, all) {
		rules = append(rules, p.list(DefaultRetry)...)
	}
	return rules, nil
}

// MaxAttempts returns the largest number of firings, the first one included.
func (r Retry) MaxAttempts() int { return len(r.delays) + 1 }

// Delays returns the delay before each further attempt, without jitter. Their number is MaxAttempts less one.
func (r Retry) Delays() []time.Duration { return slices.Clone(r.delays) }

// Jitter returns the most, in percent, by which a delay is made longer.
func (r Retry) Jitter() float64 { return r.jitter }

// Delay returns the delay after the given attempt (from 1) before the next one, and false if the attempts are used up.
// The jitter is derived from the id of the failed event, so the same event always has the same delay.
func (r Retry) Delay(attempt int, eventID string) (time.Duration, bool) {
	if attempt < 1 || attempt > len(r.delays) {
		return 0, false
	}
	delay := r.delays[attempt-1]
	if r.jitter > 0 {
		sum := sha256.Sum256([]byte(eventID))
		share := float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53)
		delay += time.Duration(float64(delay) * r.jitter / 100 * share).Round(time.Millisecond)
	}
	return delay, true
}

// String returns the policy in the form that ParseRetries reads, with the jitter of a preset spelled out.
func (r Retry) String() string {
	if _, own, _ := preset(r.base); r.jitter == 0 && own == 0 {
		return r.base
	}
	return r.base + "~" + strconv.FormatFloat(r.jitter, 'f', -1, 64) + "%"
}

// preset returns the published schedule of the given name, and its jitter.
func preset(name string) (delays []time.Duration, jitter float64, ok bool) {
	const s, m, h = time.Second, time.Minute, time.Hour
	switch name {
	case "wechatpay":
		return []time.Duration{15 * s, 15 * s, 30 * s, 3 * m, 10 * m, 20 * m, 30 * m, 30 * m, 30 * m, 60 * m, 3 * h,
			3 * h, 3 * h, 6 * h, 6 * h}, 0, true
	case "alipay":
		return []time.Duration{2 * m, 10 * m, 10 * m, 1 * h, 2 * h, 6 * h, 15 * h}, 0, true
	case "adyen":
		return []time.Duration{2 * m, 5 * m, 10 * m, 15 * m, 30 * m, 1 * h, 2 * h, 4 * h, 8 * h}, 0, true
	case "standard-webhooks":
		return []time.Duration{5 * s, 5 * m, 30 * m, 2 * h, 5 * h, 10 * h, 14 * h, 20 * h, 24 * h}, 10, true
	}
	return nil, 0, false
}

// retryParser reads a list of policies and collects its faults. Its methods take a part of the list and the part's
// offset in it.
type retryParser struct {
	faults []error
}

func (p *retryParser) fault(text string, at int, format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf("column %d: %q: %s", at+1, text, fmt.Sprintf(format, args...)))
}

// trim cuts white space off both ends.
func trim(text string, at int) (string, int) {
	left := strings.TrimLeft(text, " \t\r\n")
	return strings.TrimRight(left, " \t\r\n"), at + len(text) - len(left)
}

// split yields the parts of text between separators, trimmed, with their offsets.
func split(text string, at int, sep string) func(func(string, int) bool) {
	return func(yield func(string, int) bool) {
		for part := range strings.SplitSeq(text, sep) {
			if !yield(trim(part, at)) {
				return
			}
			at += len(part) + len(sep)
		}
	}
}

func (p *retryParser) list(s string) Rules[Retry] {
	var rules Rules[Retry]
	for entry, at := range split(s, 0, ";") {
		if entry != "" {
			rules = append(rules, p.entry(entry, at))
		}
	}
	return rules
}

func (p *retryParser) entry(text string, at int) Rule[Retry] {
	name, rest, ok := strings.Cut(text, "=")
	if !ok {
		p.fault(text, at, "want namespace=policy")
		return Rule[Retry]{}
	}
	restAt := at + len(name) + 1
	name, at = trim(name, at)
	namespace, err := keys.ParseNamespace(name)
	if err != nil {
		p.fault(name, at, "%s", strings.TrimPrefix(err.Error(), fmt.Sprintf("namespace %q: ", name)))
	}
	rest, restAt = trim(rest, restAt)
	return Rule[Retry]{namespace, p.retry(rest, restAt)}
}

func (p *retryParser) retry(text string, at int) Retry {
	base, jitter, jittered := strings.Cut(text, "~")
	jitter, jitterAt := trim(jitter, at+len(base)+1)
	base, at = trim(base, at)
	r := Retry{base: base}
	args, isExp := strings.CutPrefix(base, "exp(")
	delays, own, isPreset := preset(base)
	switch {
	case isPreset:
		r.delays, r.jitter = delays, own
	case isExp && strings.HasSuffix(args, ")"):
		r.base, r.delays = p.exponential(base, at)
	case base != "" && (isDigit(base[0]) || strings.ContainsAny(base, ",")):
		r.base, r.delays = p.delays(base, at)
	default:
		p.fault(base, at, "want the name of a preset (wechatpay, alipay, adyen, standard-webhooks), a list of delays "+
			"such as 10s,30s,2m, or exp(first,factor,max,retries)")
	}
	if jittered {
		r.jitter = p.jitter(jitter, jitterAt)
	}
	return r
}

func (p *retryParser) jitter(text string, at int) float64 {
	number, isPercent := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !isPercent || err != nil || !(percent >= 0 && percent <= 100) {
		p.fault(text, at, "want a jitter from 0%% to 100%%, such as ~10%%")
	}
	return percent
}

// delays reads a list of delays, and returns it in its shortest spelling.
func (p *retryParser) delays(text string, at int) (string, []time.Duration) {
	if n := strings.Count(text, ",") + 1; n > MaxRetries {
		p.fault(text[:min(len(text), 32)]+"…", at, "%d delays, at most %d are allowed", n, MaxRetries)
		return "", nil
	}
	var written []string
	var delays []time.Duration
	for part, at := range split(text, at, ",") {
		d := p.delay(part, at)
		delays = append(delays, d)
		written = append(written, formatDelay(d))
	}
	return strings.Join(written, ","), delays
}

func (p *retryParser) delay(text string, at int) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		p.fault(text, at, "want a delay such as 500ms, 10s, 2m or 1h30m")
		return 0
	}
	if d < MinDelay || d > Longest {
		p.fault(text, at, "want a delay from %v to %v", MinDelay, formatDelay(Longest))
	}
	return d.Round(time.Millisecond)
}

// exponential reads exp(first,factor,max,retries), and returns it in its shortest spelling.
func (p *retryParser) exponential(text string, at int) (string, []time.Duration) {
	const open = len("exp(")
	var args []string
	var offsets []int
	for arg, argAt := range split(text[open:len(text)-1], at+open, ",") {
		args, offsets = append(args, arg), append(offsets, argAt)
	}
	if len(args) != 4 {
		p.fault(text, at, "exp has %d arguments, want four: exp(first,factor,max,retries)", len(args))
		return "", nil
	}
	before := len(p.faults)
	first := p.delay(args[0], offsets[0])
	factor, err := strconv.ParseFloat(args[1], 64)
	if err != nil || !(factor >= 1 && factor <= MaxFactor) {
		p.fault(args[1], offsets[1], "want a factor from 1 to %d", MaxFactor)
	}
	most := p.delay(args[2], offsets[2])
	retries, err := strconv.Atoi(args[3])
	if err != nil || retries < 0 || retries > MaxRetries {
		p.fault(args[3], offsets[3], "want a number of retries from 0 to %d", MaxRetries)
	}
	if len(p.faults) == before && most < first {
		p.fault(args[2], offsets[2], "the longest delay is shorter than the first one, %s", args[0])
	}
	if len(p.faults) > before {
		return "", nil
	}
	delays := make([]time.Duration, retries)
	for i := range delays {
		d := math.Min(float64(first)*math.Pow(factor, float64(i)), float64(most))
		delays[i] = time.Duration(d).Round(time.Millisecond)
	}
	written := fmt.Sprintf("exp(%s,%s,%s,%d)", formatDelay(first), strconv.FormatFloat(factor, 'f', -1, 64),
		formatDelay(most), retries)
	return written, delays
}

// formatDelay formats a duration without the zeros at the end of 2m0s.
func formatDelay(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
