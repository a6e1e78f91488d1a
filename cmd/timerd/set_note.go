package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// fileNote is the progress of timerd set --from in a file. It is stored beside the file until all lines are done, so
// that the next call goes on there. The methods of a nil note do nothing.
type fileNote struct {
	Line   int    `json:"line"`   // the last finished one
	Offset int64  `json:"offset"` // of the next one, in bytes
	Before string `json:"before"` // SHA-256 of the last noteWindow bytes before Offset, in hex
	Set    int    `json:"set"`
	There  int    `json:"there"`
	Bad    int    `json:"bad"`

	file  *os.File
	path  string
	wrote time.Time
	err   error // of the last write
}

const (
	noteEnding = ".done"
	noteWindow = 4096
	// noteEvery is the time between two notes: after a kill the lines since the last one are set again.
	noteEvery = time.Second
)

// readNote returns the note of a file, and moves the file's offset behind the finished lines. It returns nil for a file
// that cannot be read again, such as a pipe.
func readNote(file *os.File, name string) (*fileNote, error) {
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	n := &fileNote{file: file, path: name + noteEnding, wrote: time.Now()}
	text, err := os.ReadFile(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return n, nil
	}
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(text, n) != nil || n.Line < 1 || n.Offset < 1 || n.Offset > info.Size() ||
		n.before(n.Offset) != n.Before {
		return nil, fmt.Errorf("%s is the progress in another version of %s: delete it to begin with the first line",
			n.path, name)
	}
	_, err = file.Seek(n.Offset, io.SeekStart)
	return n, err
}

// before returns the sum of the bytes before an offset; an empty text if they cannot be read.
func (n *fileNote) before(offset int64) string {
	text := make([]byte, min(offset, noteWindow))
	if _, err := n.file.ReadAt(text, offset-int64(len(text))); err != nil {
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// done notes that the lines before an offset are done. It writes the note now and then.
func (n *fileNote) done(b *fileSetter, line int, offset int64) {
	if n == nil {
		return
	}
	n.Line, n.Offset, n.Set, n.There, n.Bad = line, offset, b.set, b.there, b.bad
	if time.Since(n.wrote) >= noteEvery {
		n.write()
	}
}

func (n *fileNote) write() {
	n.wrote = time.Now()
	n.Before = n.before(n.Offset)
	text, err := json.Marshal(n)
	if err == nil {
		err = os.WriteFile(n.path+".new", append(text, '\n'), 0o600)
	}
	if err == nil {
		err = os.Rename(n.path+".new", n.path)
	}
	n.err = err
}

// close writes the note, or removes it if all lines are done.
func (n *fileNote) close(all bool) error {
	switch {
	case n == nil || n.Line == 0:
	case !all:
		n.write()
	default:
		n.err = nil
		if err := os.Remove(n.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.err = err
		}
	}
	if n == nil || n.err == nil {
		return nil
	}
	return fmt.Errorf("cannot store the file's progress: %w", n.err)
}
