package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by a release build: go build -ldflags "-X main.version=v1.2.3".
var version string

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionText())
			return err
		},
	}
}

// versionText returns the version and the known facts of the build, in one line.
func versionText() string {
	return fmt.Sprintf("timerd %s %s %s/%s", buildText(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// buildText returns the version, and the revision of its source if known.
func buildText() string {
	v, revision, modified := version, "", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" {
			v = info.Main.Version
		}
		for _, setting := range info.Settings {
			switch {
			case setting.Key == "vcs.revision":
				revision = setting.Value
			case setting.Key == "vcs.modified" && setting.Value == "true":
				modified = ", modified"
			}
		}
	}
	if v == "" {
		v = "(devel)"
	}
	if len(revision) > 12 {
		revision = revision[:12]
	}
	if revision != "" {
		revision = " " + revision + modified
	}
	return v + revision
}
