package cluster_test

import (
	"encoding/json"
)

// timerView is a timer of `timerd ls --json`.
type timerView struct {
	Key  string          `json:"key"`
	Due  int64           `json:"due"` // unix ms
	Data json.RawMessage `json:"data"`
}
