package servers

import (
	"fmt"
	"os"
	"testing"
)

// TestMain has the test binary be the nats-server that a test starts.
func TestMain(m *testing.M) {
	was, err := BeNATS()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // as the testing package has it
	case was:
		os.Exit(0) //nolint:forbidigo // as the testing package has it
	}
	os.Exit(m.Run()) //nolint:forbidigo // as the testing package has it
}
