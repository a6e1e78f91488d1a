// Package client is the Go API of timerd: it sets, cancels and reads timers in Redis, and consumes their events from
// NATS JetStream. Package client/admin is for operators' programs.
//
//	// The producer needs Redis only.
//	timers := client.New(redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379"}))
//	due, err := timers.Set(ctx, "shop:order:timeout:42", []byte(`{"total":99}`), client.After(30*time.Minute))
//	...
//	outcome, err := timers.Cancel(ctx, "shop:order:timeout:42") // paid in time
//
//	// The consumer needs NATS only.
//	nc, err := nats.Connect(nats.DefaultURL, nats.MaxReconnects(-1))
//	...
//	js, err := jetstream.New(nc)
//	...
//	err = client.NewConsumer(js).Consume(ctx, "shop:order:timeout", func(ctx context.Context, e client.Event) error {
//		switch err := closeOrder(ctx, e.Key.ID, e.Data); {
//		case errors.Is(err, errNoSuchOrder):
//			return client.Dead(err) // hopeless: to the dead letters
//		default:
//			return err // nil: done; otherwise timerd sets the timer again, by its retry policy
//		}
//	})
//
// # Guarantees
//
// A timer that Set acknowledged is scheduled, whether or not a timerd is running. It never fires before its due time by
// the Redis server's clock.
//
// A handler sees every event at least once. It sees one again when the process dies before the event is acknowledged,
// when the connection to NATS is lost for longer than Consumer.AckWait, and in a few rare cases that docs/guarantees.md
// lists. Event.ID is the same each time, and no other firing has it. So a handler that must not repeat its effect
// stores the id together with it. A repeated delivery is not a new attempt: only an error that the handler returns
// costs one.
package client
