package config

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/kelseyhightower/envconfig"

	"github.com/timerd-io/timerd/keys"
)

// testPrefix begins the variables of the project's own tests.
const testPrefix = prefix + "_TEST_"

// unknownVariables returns a warning for every variable of environ that has timerd's prefix and an unknown name, with
// the nearest known name. Values are not shown: a misnamed secret is a secret.
func unknownVariables(environ []string) []string {
	known := knownVariables()
	var warnings []string
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, prefix+"_") || strings.HasPrefix(name, testPrefix) ||
			slices.Contains(known, strings.TrimPrefix(name, prefix+"_")) || isServiceLink(name, value) {
			continue
		}
		warning := name + " is unknown and has no effect"
		if near := keys.Nearest(strings.TrimPrefix(name, prefix+"_"), known); near != "" {
			warning += fmt.Sprintf("; did you mean %s_%s?", prefix, near)
		}
		warnings = append(warnings, warning)
	}
	slices.Sort(warnings)
	return warnings
}

// ChildEnvironment returns this process's environment without the variables that have timerd's prefix, for programs
// started by timerd: its own settings hold passwords, also under misspelt names.
func ChildEnvironment() []string { return withoutSettings(os.Environ()) }

func withoutSettings(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		return strings.HasPrefix(entry, prefix+"_")
	})
}

// knownVariables returns the names without timerd's prefix, in declaration order.
func knownVariables() []string {
	var b strings.Builder
	if err := envconfig.Usagef(prefix, &environment{}, &b, "{{range .}}{{usage_key .}} {{end}}"); err != nil {
		return nil // cannot happen: the template is constant
	}
	names := strings.Fields(b.String())
	for i, name := range names {
		names[i] = strings.TrimPrefix(name, prefix+"_")
	}
	return names
}

// isServiceLink reports whether a variable is an address that Kubernetes puts into the environment of every pod, for a
// Service named timerd or timerd-something.
func isServiceLink(name, value string) bool {
	link := regexp.MustCompile(`_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)
	return link.MatchString(name) ||
		strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}
