package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/timerd-io/timerd/internal/config"
)

// screen has the properties of a command's output. The zero value is no terminal: its output is plain and complete,
// however wide.
type screen struct {
	width      int // columns; 0 for any number
	colours    bool
	isTerminal bool
}

// screenOf returns the properties of a command's output.
func screenOf(w io.Writer) screen {
	if p, ok := w.(pipe); ok {
		w = p.Writer
	}
	width, ok := terminalWidth(w)
	return screen{width: width, colours: ok && !config.NoColor(), isTerminal: ok}
}

// most returns the bytes of a text worth preparing: more than fit on the screen.
func (s screen) most() int {
	if s.width == 0 {
		return math.MaxInt
	}
	return utf8.UTFMax * s.width
}

// terminalWidth returns the width of a terminal in columns, 0 if unknown; ok is false if the stream is no terminal.
func terminalWidth(stream any) (width int, ok bool) {
	file, ok := stream.(*os.File)
	if !ok {
		return 0, false
	}
	conn, err := file.SyscallConn()
	if err != nil {
		return 0, false
	}
	var size *unix.Winsize
	var sizeErr error
	err = conn.Control(func(fd uintptr) { size, sizeErr = unix.IoctlGetWinsize(int(fd), unix.TIOCGWINSZ) })
	if err != nil || sizeErr != nil {
		return 0, false
	}
	return int(size.Col), true
}

// tone is the colour of a text on a terminal.
type tone string

// The tones, as ANSI codes.
const (
	tonePlain tone = ""
	toneGood  tone = "32" // green
	toneOdd   tone = "33" // yellow
	toneBad   tone = "31" // red
)

// paint returns a text in a tone, if the screen has colours.
func (s screen) paint(text string, t tone) string {
	if !s.colours || t == tonePlain || text == "" {
		return text
	}
	return "\x1b[" + string(t) + "m" + text + "\x1b[0m"
}

// errInterrupted means that the command was asked to end while it was reading.
var errInterrupted = errors.New("interrupted")

// sayReading notes on a terminal that the command reads from it; otherwise it would seem to hang.
func sayReading(cmd *cobra.Command, what string) {
	if _, ok := terminalWidth(cmd.InOrStdin()); ok {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"timerd: reading %s from this terminal; Ctrl-D in an empty line ends it, Ctrl-C gives up\n", what)
	}
}

// openStdin returns the standard input. A read fails with errInterrupted once the command is asked to end; a plain read
// would block until there is input. The caller closes it.
func openStdin(cmd *cobra.Command) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, cmd.InOrStdin())
		_ = in.CloseWithError(err) // never fails; nil is the end
	}()
	context.AfterFunc(cmd.Context(), func() { _ = in.CloseWithError(errInterrupted) })
	return out
}

// errReaderGone means that nobody reads the standard output any more.
var errReaderGone = errors.New("nobody reads the standard output")

// pipe is the standard output. If its reader is gone, it returns errReaderGone: EPIPE may come from any connection.
type pipe struct{ io.Writer }

func (p pipe) Write(b []byte) (int, error) {
	n, err := p.Writer.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		err = errReaderGone
	}
	return n, err
}

// confirm asks a question on standard error and returns nil for a yes on standard input.
func confirm(cmd *cobra.Command, question string) error {
	fmt.Fprintf(cmd.ErrOrStderr(), "timerd: %s [y/N] ", question)
	in := openStdin(cmd)
	defer func() { _ = in.Close() }() // never fails
	answer, err := bufio.NewReader(in).ReadString('\n')
	switch answer = strings.ToLower(strings.TrimSpace(answer)); {
	case err != nil && !errors.Is(err, errInterrupted) && answer == "":
		fmt.Fprintln(cmd.ErrOrStderr())
		return errors.New("nothing was done: there is no answer on standard input; give --yes to go on without one")
	case errors.Is(err, errInterrupted), answer != "y" && answer != "yes":
		return errors.New("nothing was done")
	}
	return nil
}
