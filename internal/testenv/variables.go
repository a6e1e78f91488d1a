package testenv

import (
	"os"
	"strings"
	"testing"
)

// VariablePrefix begins the variables that steer the tests. timerd itself ignores them.
const VariablePrefix = "TIMERD_TEST_"

// SetVariables has the environment hold exactly these TIMERD_ variables until the test ends, besides
// those of [VariablePrefix]. The test cannot be parallel to others.
func SetVariables(t *testing.T, variables map[string]string) {
	t.Helper()
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if strings.HasPrefix(name, "TIMERD_") && !strings.HasPrefix(name, VariablePrefix) {
			t.Setenv(name, "") // so that it is restored
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, value := range variables {
		t.Setenv(name, value)
	}
}
