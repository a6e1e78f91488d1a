package config

import "os"

// NoColor reports whether a terminal is to show no colours: NO_COLOR is set to anything, or the terminal has none.
func NoColor() bool { return os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" }
