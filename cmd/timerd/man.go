package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// newMan writes the manual pages, for the packages and for an installation from an archive.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIRECTORY",
		Short:  "Write a manual page for each command into a directory",
		Hidden: true, // a package has the pages already
		Args:   arguments(cobra.ExactArgs(1)),
		RunE: func(_ *cobra.Command, args []string) error {
			root := newRoot()
			prepareForMan(root)
			header := doc.GenManHeader{Section: "1", Source: "timerd " + version, Manual: "timerd"}
			if err := doc.GenManTree(root, &header, args[0]); err != nil {
				return fmt.Errorf("write the pages into %s: %w", filepath.Clean(args[0]), err)
			}
			return nil
		},
	}
}

// prepareForMan makes Markdown of the texts of a command and of those below it, as cobra's writer of manual pages
// expects.
func prepareForMan(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true // a section about cobra
	cmd.Long = markdown(cmd.Long)
	cmd.Flags().VisitAll(func(f *pflag.Flag) { f.Usage = escapeMarkdown(f.Usage) })
	for _, sub := range cmd.Commands() {
		prepareForMan(sub)
	}
}

// markdown returns a text of the help as Markdown. A paragraph with an indented line keeps its lines.
func markdown(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		if strings.Contains("\n"+p, "\n ") {
			paragraphs[i] = "    " + strings.ReplaceAll(p, "\n", "\n    ")
		} else {
			paragraphs[i] = escapeMarkdown(p)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

func escapeMarkdown(text string) string {
	return regexp.MustCompile("[\\\\`*_{}\\[\\]()#+.!<>~|-]").ReplaceAllString(text, `\$0`)
}
