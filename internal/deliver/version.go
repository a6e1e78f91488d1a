package deliver

import (
	"cmp"
	"time"
)

// File says which file a configuration is. All processes of a group use one file, the newest that one of them has.
type File struct {
	// Sum is the SHA-256 of its bytes, in hex, as sha256sum prints it.
	Sum string
	// Version is what the file says of itself: of two files the one with the greater version is the newer one. 0: it says
	// nothing.
	Version uint64
	// Changed is when the file was written, which decides where the versions are the same.
	Changed time.Time
}

// newerThan tells whether the file is newer than another one.
func (f File) newerThan(of File) bool {
	return cmp.Or(cmp.Compare(f.Version, of.Version), f.Changed.Compare(of.Changed)) > 0
}

// shortSum is how much of a Sum tells two files apart in a text.
const shortSum = 12

// String returns how texts call the file.
func (f File) String() string { return f.Sum[:min(len(f.Sum), shortSum)] }
