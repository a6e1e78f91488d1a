package main

import (
	"os"
	"testing"
	"time"
)

// patience bounds every wait of these tests on a slow machine. It says nothing
// about how long things should take.
const patience = 60 * time.Second

// mainVariable makes the test binary be timerd itself.
const mainVariable = "TIMERD_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
	}
	os.Exit(m.Run()) //nolint:forbidigo // as the testing package has it
}
