package system

import (
	"os"
	"path/filepath"

	"github.com/timerd-io/timerd/internal/testenv"
)

// BackUp copies the files of Redis, which it restarts for that, and returns their folder.
func (s *System) BackUp() (folder string) {
	s.T.Helper()
	folder = filepath.Join(s.T.TempDir(), "backup")
	s.Redis.Stop()
	if err := os.CopyFS(folder, os.DirFS(s.Redis.Dir())); err != nil {
		s.T.Fatal(err)
	}
	s.Redis.Start()
	return folder
}

// PutBack replaces the files of Redis by those of a backup, while it is stopped.
func (s *System) PutBack(folder string) {
	s.T.Helper()
	const files = "appendonlydir"
	s.Redis.Stop()
	if err := os.RemoveAll(filepath.Join(s.Redis.Dir(), files)); err != nil {
		s.T.Fatal(err)
	}
	if err := os.CopyFS(filepath.Join(s.Redis.Dir(), files), os.DirFS(filepath.Join(folder, files))); err != nil {
		s.T.Fatal(err)
	}
	s.Redis.Start()
	testenv.Eventually(s.T, Patience, func() error { return s.RDB.Ping(s.T.Context()).Err() }, "Redis with the backup")
}
