package cluster_test

import (
	"encoding/json"
)

// timerView is what `timerd ls --json` says of a timer.
type timerView struct {
	Key  string          `json:"key"`
	Due  int64           `json:"due"` // unix ms
	Data json.RawMessage `json:"data"`
}
