package history

import "strings"

// The apps of the keys. A fault that concerns one of them leaves the timers of the others alone.
const (
	MainApp      = "torture"   // plain timers and those of timer_set: most of all
	ElsewhereApp = "elsewhere" // only of timer_set, outside the namespaces
	NarrowApp    = "narrow"    // timerd's rights to its keys are taken away now and then
	DeniedApp    = "denied"    // NATS refuses its subjects now and then
	DyingApp     = "dying"     // its attempts are used up: it fills the stream of dead letters
	GiantApp     = "giant"     // payloads as large as they may be, and larger
	FloodApp     = "flood"     // sets thousands of timers for the same moment
	HeldApp      = "held"      // it, or a module of it, is held now and then
	HookApp      = "hook"      // timerd deliver calls a receiver with its events, who fails now and then
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
