// Package browsertest drives the console in a real Chromium, as its users do: with a mouse, by keyboard alone, on a
// phone, in the dark, and without JavaScript. It is a module of its own so that timerd does not depend on the browser's
// driver.
package browsertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMain leaves to the tests in these variables where the browser's DevTools and the program are.
const (
	devToolsVariable = "TIMERD_BROWSERTEST_DEVTOOLS"
	timerdVariable   = "TIMERD_BROWSERTEST_TIMERD"
)

func TestMain(m *testing.M) {
	code, err := prepared(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // as testing has it
}

// prepared runs the tests with one browser, each in a tab of its own, and one timerd that detects races.
func prepared(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "timerd-browsertest-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	browser, err := startChromium()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, browser.stop()) }()
	timerd := filepath.Join(dir, "timerd")
	build := exec.Command("go", "build", "-race", "-o", timerd, "./cmd/timerd")
	build.Dir = filepath.Join("..", "..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build timerd: %w\n%s", err, out)
	}
	if err := errors.Join(os.Setenv(devToolsVariable, browser.url), os.Setenv(timerdVariable, timerd)); err != nil {
		return 0, err
	}
	return m.Run(), nil
}
