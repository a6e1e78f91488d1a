package config

import (
	"io"
	"log/slog"
	"strings"
)

// Log has the settings of the log.
type Log struct {
	Level slog.Level
	JSON  bool // else text
}

// NewLogger returns a logger that writes to w.
func (c Log) NewLogger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Level}
	if c.JSON {
		o.ReplaceAttr = withUnits
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// withUnits writes durations as 1.5s in JSON, as in text; the default is a number of nanoseconds.
func withUnits(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func parseLog(env *environment, f *faults) Log {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn,
		"error": slog.LevelError}
	level, ok := levels[strings.ToLower(env.LogLevel)]
	c := Log{Level: level}
	if !ok {
		f.add("LOG_LEVEL", env.LogLevel, "debug, info, warn or error")
	}
	switch strings.ToLower(env.LogFormat) {
	case "text":
	case "json":
		c.JSON = true
	default:
		f.add("LOG_FORMAT", env.LogFormat, "text or json")
	}
	return c
}
