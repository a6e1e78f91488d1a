package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"

	"github.com/timerd-io/timerd/keys"
)

// messages is a file with the unchanged messages of the streams. Each line is {"schema": NAME, "message": …}. The
// validator is in another module, internal/console/apitest. The zero value writes nothing.
type messages struct {
	file *os.File
	w    *bufio.Writer
}

// createMessages creates the file with a name; "" means no file. The caller closes it.
func createMessages(name string) (messages, error) {
	if name == "" {
		return messages{}, nil
	}
	file, err := os.Create(name)
	return messages{file, bufio.NewWriter(file)}, err
}

// schema returns the name of the schema of a class of subjects.
func schema(class string) string {
	switch class {
	case keys.Fired:
		return "event"
	case keys.Dead:
		return "dead"
	}
	return "delivery"
}

// add keeps a message of a class of subjects. Close returns its error.
func (m messages) add(class string, data []byte) {
	if m.w != nil {
		_, _ = fmt.Fprintf(m.w, `{"schema":%q,"message":%s}`+"\n", schema(class), data) // the writer keeps its error
	}
}

// Close returns the first error.
func (m messages) Close() error {
	if m.file == nil {
		return nil
	}
	return errors.Join(m.w.Flush(), m.file.Close())
}
