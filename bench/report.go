package main

import (
	"github.com/spf13/cobra"

	"github.com/timerd-io/timerd/bench/internal/report"
	"github.com/timerd-io/timerd/bench/internal/result"
)

func newReportCommand() *cobra.Command {
	var document, plots string
	cmd := &cobra.Command{
		Use:   "report RESULTS.json...",
		Short: "make tables and plots of one run, or of one in several files",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := result.Load(args...)
			if err != nil {
				return err
			}
			if document == "" {
				return report.Tables(cmd.OutOrStdout(), run)
			}
			return report.Update(run, document, plots)
		},
	}
	cmd.Flags().StringVar(&document, "md", "",
		"write them into this document, between its markers; without it they go to stdout, without plots")
	cmd.Flags().StringVar(&plots, "plots", "docs/benchmarks", "the directory of the plots")
	return cmd
}
