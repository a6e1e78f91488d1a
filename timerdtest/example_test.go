package timerdtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/timerd-io/timerd/client"
	"github.com/timerd-io/timerd/timerdtest"
)

// An order that is not paid within half an hour is cancelled.
func Example() {
	defer t.end()            // of this example alone
	srv := timerdtest.New(t) // t is the *testing.T of the test
	cancelled := make(chan string, 1)
	srv.Consume(t, "shop:order:timeout", func(_ context.Context, e client.Event) error {
		cancelled <- e.Key.ID
		return nil
	})

	set := srv.Redis().Set(t.Context(), "shop:order:timeout:42", `{"order":42}`, 30*time.Minute)
	fmt.Println(set.Err(), "after 29 minutes:", len(srv.Advance(t, 29*time.Minute)))
	fmt.Println("after 31 minutes:", len(srv.Advance(t, 2*time.Minute)), "cancelled:", <-cancelled)
	// Output:
	// <nil> after 29 minutes: 0
	// after 31 minutes: 1 cancelled: 42
}

// A payment's callback, with the retries of WeChat Pay, succeeds at the seventh attempt.
func Example_callback() {
	defer t.end()
	srv := timerdtest.Start(t, timerdtest.Options{Retry: "pay=wechatpay"})
	srv.Consume(t, "pay:callback", func(_ context.Context, e client.Event) error {
		if e.Attempt < 7 {
			return errors.New("503 Service Unavailable")
		}
		return nil
	})

	paid := srv.Now()
	if _, err := srv.Timers().Set(t.Context(), "pay:callback:notify:1", nil, client.After(time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, e := range srv.Advance(t, 72*time.Hour) {
		fmt.Println(e.Attempt, e.Due.Sub(paid).Truncate(15*time.Second))
	}
	// Output:
	// 1 0s
	// 2 15s
	// 3 30s
	// 4 1m0s
	// 5 4m0s
	// 6 14m0s
	// 7 34m0s
}

// A merchant's server that is down for half an hour gets its callback with the seventh call.
func Example_webhook() {
	defer t.end()
	srv := timerdtest.Start(t, timerdtest.Options{Retry: "pay=wechatpay", Deliver: `
endpoints:
- match: pay:callback
  url: '{data.notify_url}'
  ports: any
  allow_private: [127.0.0.0/8]
`})
	paid := srv.Now()
	merchant := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		passed := srv.Now().Sub(paid)
		fmt.Println("called after", passed.Truncate(15*time.Second))
		if passed < 30*time.Minute {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer merchant.Close()

	data := fmt.Appendf(nil, `{"order":42,"notify_url":%q}`, merchant.URL)
	if _, err := srv.Timers().Set(t.Context(), "pay:callback:notify:42", data, client.After(time.Second)); err != nil {
		t.Fatal(err)
	}
	srv.Advance(t, 72*time.Hour)
	// Output:
	// called after 0s
	// called after 15s
	// called after 30s
	// called after 1m0s
	// called after 4m0s
	// called after 14m0s
	// called after 34m0s
}

// An order that is paid is not cancelled, though nobody cancels its timer: the timer looks for the payment.
func Example_guard() {
	defer t.end()
	srv := timerdtest.New(t)
	for _, id := range []string{"41", "42"} {
		_, err := srv.Timers().Set(t.Context(), "shop:order:timeout:"+id, nil, client.After(30*time.Minute),
			client.Unless("shop:order:paid:"+id))
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.Redis().Set(t.Context(), "shop:order:paid:42", "yes", 0).Err(); err != nil {
		t.Fatal(err)
	}
	for _, e := range srv.Advance(t, time.Hour) {
		fmt.Println("cancelled:", e.Key.ID)
	}
	// Output:
	// cancelled: 41
}

// A daily report at half past two, over the night in which Berlin's clocks go from two to three.
func Example_cron() {
	defer t.end()
	srv := timerdtest.New(t)
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	change := lastSunday(srv.Now().Year()+1, time.March, berlin)
	srv.AdvanceTo(t, change.AddDate(0, 0, -2).Add(12*time.Hour))
	report := client.Cron("30 2 * * *", "Europe/Berlin")
	if _, err := srv.Timers().Repeat(t.Context(), "shop:report:daily:1", nil, report); err != nil {
		t.Fatal(err)
	}
	for _, e := range srv.Advance(t, 3*24*time.Hour) {
		fmt.Println(e.Occurrence, e.Due.In(berlin).Format("Mon 15:04 MST"))
	}
	// Output:
	// 1 Sat 02:30 CET
	// 2 Sun 03:00 CEST
	// 3 Mon 02:30 CEST
}

// lastSunday returns the beginning of the last Sunday of a month.
func lastSunday(year int, month time.Month, in *time.Location) time.Time {
	day := time.Date(year, month+1, 0, 0, 0, 0, 0, in)
	return day.AddDate(0, 0, -int(day.Weekday()))
}
