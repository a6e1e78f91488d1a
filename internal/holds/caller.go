package holds

import (
	"crypto/rand"
	"os"
	"os/user"

	"github.com/timerd-io/timerd/schedule"
)

// NewCaller returns the holds of a schedule for who is no timerd: a command, or a program with the Go client.
func NewCaller(s *schedule.Schedule) *Holds {
	h := New(s, "caller-"+rand.Text())
	h.Nodes = s.UndatedNodes
	return h
}

// whoami returns user@host, for others to read.
func whoami() string {
	name := "somebody"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
