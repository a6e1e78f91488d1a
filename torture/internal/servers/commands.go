package servers

import (
	"bytes"
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
