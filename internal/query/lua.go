// Package query reads the schedule: it finds timers, goes through them, counts them and tells all that is known of one. It changes
// nothing. Its scripts are in lua/.
package query

import "embed"

//go:embed lua/*.lua
var lua embed.FS
