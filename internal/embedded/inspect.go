package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// State is the state of a data directory, seen from outside.
type State struct {
	Exists  bool
	Free    uint64 // free bytes on its file system
	Running bool   // a process runs the server of the directory
	Server  string // the id of that server, "" if unknown
}

// Inspect looks at a data directory, which need not exist, and changes nothing. The error is the reason why this
// process cannot run a server there.
func Inspect(dir string) (State, error) {
	place := dir
	info, err := os.Stat(place)
	exists := err == nil
	for errors.Is(err, fs.ErrNotExist) && place != filepath.Dir(place) { // the nearest existing directory
		place = filepath.Dir(place)
		info, err = os.Stat(place)
	}
	if err != nil {
		return State{}, fmt.Errorf("TIMERD_DATA_DIR: %w", err)
	}
	if !info.IsDir() {
		return State{}, fmt.Errorf("TIMERD_DATA_DIR=%s: %s is no directory", dir, place)
	}
	if err := unix.Access(place, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return State{}, fmt.Errorf("TIMERD_DATA_DIR=%s: %s: %w", dir, place, err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(place, &disk); err != nil {
		return State{}, fmt.Errorf("TIMERD_DATA_DIR=%s: free space of %s: %w", dir, place, err)
	}
	state := State{Exists: exists, Free: disk.Bavail * uint64(disk.Bsize)}
	if !exists {
		return state, nil
	}
	err = state.lookAtLock(filepath.Join(dir, lockFile))
	return state, err
}

// lookAtLock finds out whether a directory's lock file is locked, and by which server.
func (s *State) lookAtLock(name string) (err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("TIMERD_DATA_DIR: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }() // closing unlocks it
	switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case err == nil:
		return nil
	case !errors.Is(err, syscall.EWOULDBLOCK):
		return fmt.Errorf("TIMERD_DATA_DIR: %s: %w", name, err)
	}
	s.Running = true
	id, err := os.ReadFile(name)
	s.Server = strings.TrimSpace(string(id))
	return err
}

// leaveName writes the id of the server into the lock file, for Inspect.
func leaveName(lock *os.File, id string) error {
	err := lock.Truncate(0)
	if err == nil {
		_, err = lock.WriteAt([]byte(id+"\n"), 0)
	}
	if err != nil {
		return fmt.Errorf("TIMERD_DATA_DIR: %w", err)
	}
	return nil
}
