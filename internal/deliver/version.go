package deliver

import (
	"cmp"
	"time"
)

// File identifies the file of a configuration. All processes of a group use one file, the newest that any of them has.
type File struct {
	// Sum is the SHA-256 of its bytes, in hex, as sha256sum prints it.
	Sum string
	// Version is the file's own version: of two files the one with the greater version is newer. 0 means none.
	Version uint64
	// Changed is the modification time of the file, which decides between equal versions.
	Changed time.Time
}

// newerThan reports whether the file is newer than another one.
func (f File) newerThan(of File) bool {
	return cmp.Or(cmp.Compare(f.Version, of.Version), f.Changed.Compare(of.Changed)) > 0
}

// shortSum is the length of a Sum in texts.
const shortSum = 12

// String returns the file's name in texts.
func (f File) String() string { return f.Sum[:min(len(f.Sum), shortSum)] }
