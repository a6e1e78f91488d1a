package cron_test

import (
	"fmt"
	"time"

	"github.com/timerd-io/timerd/internal/cron"
)

// Nine o'clock in Berlin on working days, in summer and winter time.
func ExampleAt() {
	spec, err := cron.At("0 9 * * MON-FRI", "Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	r := cron.Repetition{Spec: spec}
	at := time.Date(2026, 3, 26, 12, 0, 0, 0, time.UTC)
	for range 3 {
		at, _ = r.Next(at)
		fmt.Println(at, "is", at.In(spec.Location()).Format("Monday 15:04"))
	}
	// Output:
	// 2026-03-27 08:00:00 +0000 UTC is Friday 09:00
	// 2026-03-30 07:00:00 +0000 UTC is Monday 09:00
	// 2026-03-31 07:00:00 +0000 UTC is Tuesday 09:00
}

func ExampleAt_fault() {
	_, err := cron.At("0 25 * * *", "")
	fmt.Println(err)
	// Output:
	// hour "25": want * or numbers from 0 to 23, as a list 1,2, a range 1-5 or with a step */5
}

// The clock of New York skips 2:30 on 8 March 2026.
func ExampleRepetition_Next() {
	spec, err := cron.Parse("cron 30 2 * * * America/New_York")
	if err != nil {
		fmt.Println(err)
		return
	}
	r := cron.Repetition{Spec: spec}
	at := time.Date(2026, 3, 7, 6, 0, 0, 0, time.UTC)
	for range 3 {
		at, _ = r.Next(at)
		fmt.Println(at.In(spec.Location()))
	}
	// Output:
	// 2026-03-07 02:30:00 -0500 EST
	// 2026-03-08 03:00:00 -0400 EDT
	// 2026-03-09 02:30:00 -0400 EDT
}

// Nothing ran for an hour, and occurrences missed in the last ten minutes of it still fire.
func ExampleRepetition_After() {
	spec, err := cron.Every(5 * time.Minute)
	if err != nil {
		fmt.Println(err)
		return
	}
	nine := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	r := cron.Repetition{Spec: spec, From: nine, CatchUp: 10 * time.Minute}
	step := r.After(nine, 1, nine.Add(61*time.Minute))
	fmt.Println(step.Due.Format(time.TimeOnly), "after", step.Skipped, "skipped")
	step = r.After(step.Due, 2, nine.Add(61*time.Minute))
	fmt.Println(step.Due.Format(time.TimeOnly), "after", step.Skipped, "skipped")
	// Output:
	// 09:55:00 after 10 skipped
	// 10:00:00 after 0 skipped
}
