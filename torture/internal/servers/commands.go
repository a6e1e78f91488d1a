package servers

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Command runs a command of timerd, which reaches Redis without a proxy, and kills it when ctx ends. It reports whether
// the command warned about replicas.
func (s *System) Command(ctx context.Context, args ...string) (warned bool, err error) {
	_, stderr, err := s.command(ctx, args...)
	return strings.Contains(stderr, "replica"), err
}

// Holds returns the list of holds: for each namespace the beginning of its hold, in ms. A namespace stays in the list
// until all of its timers are released.
func (s *System) Holds(ctx context.Context) (map[string]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*operationTimeout)
	defer cancel()
	stdout, _, err := s.command(ctx, "holds", "--json")
	if err != nil {
		return nil, err
	}
	all := map[string]int64{}
	for lines := json.NewDecoder(strings.NewReader(stdout)); ; {
		var line struct {
			Namespace string    `json:"namespace"`
			Since     time.Time `json:"since"`
		}
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("servers: timerd holds: %w", err)
		}
		all[line.Namespace] = line.Since.UnixMilli()
	}
}

// accountTime bounds the wait until the accounts of all partitions have begun, which takes up to 30 s.
const accountTime = 90 * time.Second

// Account waits until timerd account is whole and differs in nothing, and then returns "". After accountTime it returns
// the command's complaint. Events may be unexplained where a failover may have lost writes.
func (s *System) Account(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, accountTime)
	defer cancel()
	for complaint := "timerd account did not end"; ; {
		stdout, stderr, err := s.command(ctx, "account", "--json")
		var is account
		if wrong := json.Unmarshal([]byte(stdout), &is); wrong == nil && is.agrees(s.Shape.Replicated()) {
			return ""
		}
		if ctx.Err() != nil {
			return complaint
		}
		complaint = cmp.Or(strings.TrimSpace(stderr), stdout, fmt.Sprint(err))
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return complaint
		}
	}
}

// account is the output of timerd account, as far as it is judged.
type account struct {
	Since           time.Time
	Differences     []struct{}
	Without, Moving int64
	Events          *struct {
		At          time.Time
		Least, Most int64
	}
}

// agrees reports whether the account is whole and differs in nothing. With failovers, events are not judged.
func (a account) agrees(failovers bool) bool {
	if a.Since.IsZero() || len(a.Differences) > 0 || a.Without+a.Moving > 0 {
		return false
	}
	return failovers || a.Events != nil && !a.Events.At.IsZero() && a.Events.Least <= 0 && a.Events.Most >= 0
}

func (s *System) command(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = s.environment, &out, &complaint
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("servers: timerd %s: %w: %s", strings.Join(args, " "), err,
			strings.TrimSpace(complaint.String()))
	}
	return out.String(), complaint.String(), err
}
