package system

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/timerd-io/timerd/internal/testenv"
)

// persisted returns the names in the folder of Redis that have its data.
func persisted() []string { return []string{"appendonlydir", "dump.rdb"} }

// BackUp copies the data of Redis, which it restarts for that, and returns the folder of the copy.
func (s *System) BackUp() (folder string) {
	s.T.Helper()
	folder = filepath.Join(s.T.TempDir(), "backup")
	s.Redis.Stop()
	if err := os.CopyFS(folder, os.DirFS(s.Redis.Dir())); err != nil {
		s.T.Fatal(err)
	}
	s.Redis.Start()
	all, err := os.ReadDir(folder)
	if err != nil {
		s.T.Fatal(err)
	}
	for _, file := range all {
		if slices.Contains(persisted(), file.Name()) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(folder, file.Name())); err != nil {
			s.T.Fatal(err)
		}
	}
	return folder
}

// PutBack replaces the data of Redis by those of a backup, while it is stopped.
func (s *System) PutBack(folder string) {
	s.T.Helper()
	s.Redis.Stop()
	for _, name := range persisted() {
		if err := os.RemoveAll(filepath.Join(s.Redis.Dir(), name)); err != nil {
			s.T.Fatal(err)
		}
	}
	if err := os.CopyFS(s.Redis.Dir(), os.DirFS(folder)); err != nil {
		s.T.Fatal(err)
	}
	s.Redis.Start()
	testenv.Eventually(s.T, Patience, func() error { return s.RDB.Ping(s.T.Context()).Err() }, "Redis with the backup")
}
