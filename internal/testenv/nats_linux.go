package testenv

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// FillDisk has the next write of a stream of the account of clients without one fail as on a full disk. As nats-server
// does, the stream keeps that error until Restart. The stream has stored a message since the server's start.
func (s *NATSServer) FillDisk(stream string) {
	s.t.Helper()
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		s.t.Fatalf("testenv: %v", err)
	}
	defer func() { _ = full.Close() }()
	files := filepath.Join(s.StoreDir(), "jetstream", "$G", "streams", stream, "msgs")
	const own = "/proc/self/fd"
	descriptors, err := os.ReadDir(own)
	if err != nil {
		s.t.Fatalf("testenv: %v", err)
	}
	replaced := 0
	for _, d := range descriptors {
		file, err := os.Readlink(filepath.Join(own, d.Name()))
		if err != nil || !strings.HasPrefix(file, files) || filepath.Ext(file) != ".blk" {
			continue
		}
		fd, err := strconv.Atoi(d.Name())
		if err == nil {
			err = syscall.Dup3(int(full.Fd()), fd, syscall.O_CLOEXEC)
		}
		if err != nil {
			s.t.Fatalf("testenv: filling the disk: %v", err)
		}
		replaced++
	}
	if replaced == 0 {
		s.t.Fatalf("testenv: the server has no file open in %s", files)
	}
}
