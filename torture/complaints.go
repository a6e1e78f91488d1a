package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// complaints returns what Go's runtime has said in the logs of the timerds: a crash, or a race where
// they were built to find those. No crash is injected from within.
func complaints(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "timerd-*.log"))
	for _, name := range logs {
		text, readErr := os.ReadFile(name)
		err = errors.Join(err, readErr)
		for _, sign := range []string{"WARNING: DATA RACE", "\npanic: ", "\nfatal error: "} {
			if bytes.Contains(text, []byte(sign)) {
				err = errors.Join(err, fmt.Errorf("%s in %s", bytes.TrimSpace([]byte(sign)), name))
			}
		}
	}
	return err
}
