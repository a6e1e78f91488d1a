package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// progressAfter is how long a command says nothing of how far it is, progressPause for how long what it says stays.
const (
	progressAfter = 500 * time.Millisecond
	progressPause = 100 * time.Millisecond
)

// progress says on a terminal how far a command is, in one line that is written over. Elsewhere it says nothing.
type progress struct {
	w     io.Writer // nil: it says nothing
	width int       // columns; 0 for any number
	next  time.Time // when it is to say something again
	shown int       // columns that it has written to
}

// progressOf returns the progress of a command that begins now, on its standard error.
func progressOf(cmd *cobra.Command) *progress {
	p := &progress{next: time.Now().Add(progressAfter)}
	if width, ok := terminalWidth(cmd.ErrOrStderr()); ok {
		p.w, p.width = cmd.ErrOrStderr(), width
	}
	return p
}

// show says how far the command is, unless it has just done so.
func (p *progress) show(format string, args ...any) {
	if p.w == nil || time.Now().Before(p.next) {
		return
	}
	p.next = time.Now().Add(progressPause)
	text := "timerd: " + fmt.Sprintf(format, args...)
	if p.width > 0 {
		text = cutText(text, p.width-1, false) // so that the terminal begins no new line
	}
	p.write(text)
}

// clear takes away what was said. It is to be called before anything else is written.
func (p *progress) clear() {
	if p.shown > 0 {
		p.write("")
		fmt.Fprint(p.w, "\r")
	}
}

// write writes a text over the one before.
func (p *progress) write(text string) {
	width := textWidth(text)
	fmt.Fprint(p.w, "\r"+text+strings.Repeat(" ", max(p.shown-width, 0)))
	p.shown = width
}
