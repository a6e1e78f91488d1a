package deliver

import "time"

// SetLogPatience has writing a record be tried for so long.
func (d *Deliverer) SetLogPatience(most time.Duration) { d.logPatience.Store(int64(most)) }
