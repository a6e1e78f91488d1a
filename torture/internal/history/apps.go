package history

import "strings"

// The apps of the keys. A fault of one app does not concern the timers of other apps.
const (
	MainApp      = "torture"   // most timers: plain ones and those of timer_set
	ElsewhereApp = "elsewhere" // timers of timer_set only, outside the namespaces
	NarrowApp    = "narrow"    // timerd's rights to its keys are taken away now and then
	DeniedApp    = "denied"    // NATS refuses its subjects now and then
	DyingApp     = "dying"     // its attempts are used up: it fills the stream of dead letters
	GiantApp     = "giant"     // payloads of the largest size, and larger
	FloodApp     = "flood"     // sets thousands of timers for the same moment
	HeldApp      = "held"      // on hold now and then, or a module of it
	HookApp      = "hook"      // timerd deliver calls a receiver with its events; the receiver fails now and then
)

// Namespaces returns the apps whose plain keys are timers.
func Namespaces() []string {
	return []string{MainApp, NarrowApp, DeniedApp, DyingApp, GiantApp, FloodApp, HeldApp, HookApp}
}

// App returns the app of a key.
func App(key string) string {
	app, _, _ := strings.Cut(key, ":")
	return app
}
