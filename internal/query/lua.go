// Package query reads the schedule: it finds timers, walks through them, counts them, and describes one. It changes
// nothing. Its scripts are in lua/.
package query

import "embed"

//go:embed lua/*.lua
var lua embed.FS
