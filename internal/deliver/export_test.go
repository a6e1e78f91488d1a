package deliver

import "time"

// SetLogPatience has writing a record be tried for so long.
func (d *Deliverer) SetLogPatience(most time.Duration) { d.logPatience.Store(int64(most)) }

// SetLogTry has each try to write a record last for so long at most. It is called before Run.
func (d *Deliverer) SetLogTry(most time.Duration) { d.logTry = most }
