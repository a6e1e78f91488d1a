package rig

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Field returns the first value of a name in a file of lines, such as those in /proc; "" if there is none.
func Field(file, name, separator string) (string, error) {
	text, err := os.ReadFile(filepath.Clean(file))
	if err != nil {
		return "", err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), separator)
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value), nil
		}
	}
	return "", nil
}

// Memory returns the machine's memory by its name in /proc/meminfo, such as MemAvailable, in bytes.
func Memory(name string) (int64, error) {
	text, err := Field("/proc/meminfo", name, ":")
	if err != nil {
		return 0, err
	}
	var kB int64
	if _, err := fmt.Sscan(text, &kB); err != nil {
		return 0, fmt.Errorf("/proc/meminfo: %s %q: %w", name, text, err)
	}
	return kB << 10, nil
}

// FreeDisk returns the bytes that may be written where a directory is.
func FreeDisk(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free disk at %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}
