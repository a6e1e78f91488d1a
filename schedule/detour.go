package schedule

import (
	"sync"
)

// detourLength is how many claims take the full way after one had to: what is unusual lasts. fullAfter is after how many claims
// by the short way one takes the full way, which removes old tombstones.
const detourLength, fullAfter = 8, 32

// detour says which claims take the full way without trying the short one. It is safe for concurrent use.
type detour struct {
	mu   sync.Mutex
	left int // how many claims from now on take the full way
	run  int // how many have taken the short way since
}

// take has the next claims take the full way.
func (d *detour) take(claims int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = max(d.left, claims)
}

// taken tells whether the next claim takes the full way.
func (d *detour) taken() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left == 0 {
		d.run++
		if d.run < fullAfter {
			return false
		}
		d.left = 1
	}
	d.left--
	d.run = 0
	return true
}
