package main

import (
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/internal/config"
)

// helpWidth limits the columns of help and of the state of the installation, apart from long names.
const helpWidth = 100

// newConfigTopic returns the help topic `timerd help config`.
func newConfigTopic() *cobra.Command {
	const noColor = `  NO_COLOR
      with any value: no colours on a terminal
`
	return &cobra.Command{
		Use:   "config",
		Short: "The environment variables that configure timerd",
		Long:  "timerd has no configuration file. " + wrap(config.Help(), helpWidth) + noColor,
	}
}

// usageTemplate is cobra's, but with lines of flags within helpWidth, and with help topics named by their commands.
const usageTemplate = `Usage:{{if .Runnable}}
  {{.UseLine}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{$all := .Commands}}{{range $group := .Groups}}

{{.Title}}{{range $all}}{{if and (eq .GroupID $group.ID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}

{{if .Groups}}Others{{else}}Available Commands{{end}}:{{range $all}}{{if and (eq .GroupID "") (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}{{if .HasHelpSubCommands}}

Help Topics:{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{.Root.Name}} help {{.Name}}  {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableSubCommands}}

Use "{{.CommandPath}} [command] --help" for more information about a command.{{end}}
`

// wrap breaks the lines of a text over a width, at spaces. Continuation lines have the same indentation.
func wrap(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		indent := line[:len(line)-len(strings.TrimLeft(line, " "))]
		column := 0
		for i, word := range strings.Fields(line) {
			n := utf8.RuneCountInString(word)
			switch {
			case i == 0:
				b.WriteString(indent)
				column = len(indent)
			case column+1+n > width:
				b.WriteString("\n" + indent)
				column = len(indent)
			default:
				b.WriteByte(' ')
				column++
			}
			b.WriteString(word)
			column += n
		}
		b.WriteByte('\n')
	}
	return b.String()
}
