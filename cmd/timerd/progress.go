package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// progressAfter is the time before a command shows its progress, and progressPause the interval of changes.
const (
	progressAfter = 500 * time.Millisecond
	progressPause = 100 * time.Millisecond
)

// progress shows a command's progress on a terminal, in one line that is overwritten. Elsewhere it shows nothing.
type progress struct {
	w     io.Writer // nil: it shows nothing
	width int       // columns; 0 for any number
	next  time.Time // time of the next change
	shown int       // columns in use
}

// progressOf returns the progress of a command that begins now, on its standard error.
func progressOf(cmd *cobra.Command) *progress {
	p := &progress{next: time.Now().Add(progressAfter)}
	if width, ok := terminalWidth(cmd.ErrOrStderr()); ok {
		p.w, p.width = cmd.ErrOrStderr(), width
	}
	return p
}

// show shows the progress, unless it did so within progressPause.
func (p *progress) show(format string, args ...any) {
	if p.w == nil || time.Now().Before(p.next) {
		return
	}
	p.next = time.Now().Add(progressPause)
	text := "timerd: " + fmt.Sprintf(format, args...)
	if p.width > 0 {
		text = cutText(text, p.width-1, false) // short enough to stay in one line
	}
	p.write(text)
}

// clear removes the line. Call it before writing anything else.
func (p *progress) clear() {
	if p.shown > 0 {
		p.write("")
		fmt.Fprint(p.w, "\r")
	}
}

// write overwrites the last text.
func (p *progress) write(text string) {
	width := textWidth(text)
	fmt.Fprint(p.w, "\r"+text+strings.Repeat(" ", max(p.shown-width, 0)))
	p.shown = width
}
