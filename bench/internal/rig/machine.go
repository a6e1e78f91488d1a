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

// Field returns the first value of a name in a file of lines, such as the files in /proc; "" if the name is missing.
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

// Memory returns an amount of the machine's memory, in bytes, by its name in /proc/meminfo, such as MemAvailable.
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

// FreeDisk returns the number of bytes that this process may write to a directory's disk.
func FreeDisk(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free disk at %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}
