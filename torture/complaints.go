package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// complaints returns messages of Go's runtime in the timerds' logs: a crash, or a data race if the timerds are built
// with the race detector. The run itself injects no crashes from within.
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
