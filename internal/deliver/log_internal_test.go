package deliver

import (
	"testing"
	"time"
)

func TestPatienceOfTheLog(t *testing.T) {
	type try struct {
		took time.Duration
		away bool
	}
	slow := try{took: 10 * time.Second}
	for _, c := range []struct {
		name  string
		tries []try
		again bool
	}{
		{"one that failed at once", []try{{}}, true},
		{"as long as it lasts", []try{slow, slow}, true},
		{"too long", []try{slow, slow, slow}, false},
		{"NATS was away meanwhile", []try{slow, slow, {away: true}, slow, slow}, true},
		{"away for long", []try{{took: time.Hour, away: true}}, true},
		{"the process stood still for longer than patience lasts", []try{{took: time.Hour}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, again := newPatience(30*time.Second), false
			for _, try := range c.tries {
				again = p.failed(try.took, try.away)
			}
			if again != c.again {
				t.Errorf("tried again: %v, want %v", again, c.again)
			}
		})
	}
}
