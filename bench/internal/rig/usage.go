package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticksPerSecond is the unit of CPU times in /proc: USER_HZ. It is 100 on every Linux on which Go runs.
const ticksPerSecond = 100

// Usage is the usage of one role's processes.
type Usage struct {
	CPU time.Duration // user and system time, of the processes and of their children, ended ones included
	RSS int64         // bytes resident now; a page shared by processes counts for each of them
}

// Usage returns the usage by role. It works on Linux only, because it reads /proc.
func (r *Rig) Usage() (map[string]Usage, error) {
	stats, err := readStats("/proc")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for pid, s := range stats {
		children[s.parent] = append(children[s.parent], pid)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	used := make(map[string]Usage)
	for _, p := range r.processes {
		u := used[p.role]
		for todo := []int{p.Pid()}; len(todo) > 0; {
			pid := todo[0]
			todo = append(todo[1:], children[pid]...)
			u.CPU += stats[pid].cpu
			u.RSS += stats[pid].rss
		}
		used[p.role] = u
	}
	return used, nil
}

type stat struct {
	parent int
	cpu    time.Duration
	rss    int64
}

func readStats(proc string) (map[int]stat, error) {
	dirs, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	stats := make(map[int]stat)
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join(proc, d.Name(), "stat"))
		if err != nil {
			continue // it has ended meanwhile
		}
		if stats[pid], err = parseStat(line); err != nil {
			return nil, fmt.Errorf("%s/%d/stat: %w", proc, pid, err)
		}
	}
	return stats, nil
}

// parseStat reads a line of /proc/PID/stat. The second field is a name in parentheses, with any characters.
func parseStat(line []byte) (stat, error) {
	end := bytes.LastIndexByte(line, ')')
	fields := strings.Fields(string(line[end+1:]))
	const (
		parent, firstTime, times, rss = 1, 11, 4, 21 // indexes, from the field behind the name on
	)
	if end < 0 || len(fields) <= rss {
		return stat{}, fmt.Errorf("unexpected content: %q", line)
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i], 10, 64)
		return n
	}
	var ticks int64
	for i := range times {
		ticks += number(firstTime + i)
	}
	return stat{
		parent: int(number(parent)),
		cpu:    time.Duration(ticks) * time.Second / ticksPerSecond,
		rss:    number(rss) * int64(os.Getpagesize()),
	}, nil
}
