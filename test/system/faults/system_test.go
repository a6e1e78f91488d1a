package faults_test

import "github.com/timerd-io/timerd/test/system"

// with returns the same servers with other settings.
func with(s *system.System, env map[string]string) *system.System {
	other := *s
	other.Env = env
	return &other
}
