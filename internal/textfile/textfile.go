// Package textfile reads text written by editors and shells: with byte order marks, in UTF-16, or with white space
// around it.
package textfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
)

// Bare returns text without white space and byte order marks around it. UTF-16 is an error with a fix.
func Bare(text []byte) ([]byte, error) {
	if bytes.HasPrefix(text, []byte{0xff, 0xfe}) || bytes.HasPrefix(text, []byte{0xfe, 0xff}) {
		return nil, errors.New("it is UTF-16, as PowerShell's > writes it: save it as UTF-8")
	}
	mark := []byte("\ufeff")
	return bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(text), mark)), nil
}

// Read returns the content of a file as Bare does. Errors name the file.
func Read(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if text, err = Bare(text); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}
