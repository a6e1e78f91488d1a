package peer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/timerd-io/timerd/bench/internal/firing"
	"github.com/timerd-io/timerd/bench/internal/rig"
	"github.com/timerd-io/timerd/internal/devserver"
)

const workerRabbit = "rabbitmq"

// Names of the queues.
const (
	rabbitWaiting = "waiting"
	rabbitFired   = "fired"
)

// rabbitServer is the server program itself; Debian's /usr/sbin/rabbitmq-server changes the user first.
const rabbitServer = "/usr/lib/rabbitmq/bin/rabbitmq-server"

// rabbitmq is RabbitMQ with delayed messages as its documentation makes them without a plugin: in one queue each
// message has a TTL, and goes to another queue when the TTL runs out.
type rabbitmq struct {
	sorted  bool
	channel *amqp.Channel
}

func rabbitmqSpecs() []Spec {
	spec := func(name, title, settings string, sorted bool) Spec {
		return Spec{
			Name: name, Title: title, Settings: settings +
				"; durable classic queues, persistent messages, publisher confirms",
			ArmRate: 8_000, Missing: rabbitMissing, New: func(Spec) System { return &rabbitmq{sorted: sorted} },
		}
	}
	return []Spec{
		spec("rabbitmq-sorted", "RabbitMQ TTL+DLX, in order",
			"set by due time, which is the best case: no timer waits behind a later one", true),
		spec("rabbitmq-mixed", "RabbitMQ TTL+DLX, mixed delays",
			"set in mixed order; a message expires only at the head of its queue", false),
	}
}

func rabbitMissing() error {
	if _, err := os.Stat(rabbitServer); err != nil {
		return fmt.Errorf("no %s: `bench/deps.sh rabbitmq` installs Debian's package", rabbitServer)
	}
	return nil
}

func (q *rabbitmq) Start(ctx context.Context, r *rig.Rig, fired func(firing.Firing)) error {
	dir, err := r.Subdir("rabbitmq")
	if err != nil {
		return err
	}
	free := [2]int{}
	for i := range free {
		if free[i], err = devserver.FreePort(); err != nil {
			return err
		}
	}
	conf := filepath.Join(dir, "rabbitmq.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, "listeners.tcp.default = %s\n", devserver.Address(free[0])),
		0o600); err != nil {
		return err
	}
	plugins := filepath.Join(dir, "enabled_plugins")
	if err := os.WriteFile(plugins, []byte("[].\n"), 0o600); err != nil {
		return err
	}
	// The node's name must be unique, because another node may be running. The node registers with epmd, which is
	// started before it: otherwise the node would start an epmd that outlives it.
	epmd, err := devserver.FreePort()
	if err != nil {
		return err
	}
	port := strconv.Itoa(epmd)
	if _, err := r.Start("epmd", exec.CommandContext(context.WithoutCancel(ctx), "epmd", "-port", port, "-address",
		"127.0.0.1")); err != nil {
		return err
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), rabbitServer)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LANG=C.UTF-8", "ERL_EPMD_PORT=" + port,
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME=bench" + port + "@localhost", "RABBITMQ_DIST_PORT=" + strconv.Itoa(free[1]),
		"RABBITMQ_MNESIA_BASE=" + dir, "RABBITMQ_LOG_BASE=" + dir, "RABBITMQ_PID_FILE=" + filepath.Join(dir, "pid"),
		"RABBITMQ_CONFIG_FILE=" + conf, "RABBITMQ_ENABLED_PLUGINS_FILE=" + plugins, "RABBITMQ_CONF_ENV_FILE=" +
			filepath.Join(dir, "none"),
		"ERL_CRASH_DUMP=/dev/null", "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
	}
	if _, err := r.Start("rabbitmq", cmd); err != nil {
		return err
	}
	url := "amqp://guest:guest@" + devserver.Address(free[0]) + "/"
	var connection *amqp.Connection
	if err := rig.Until(ctx, time.Minute, func(context.Context) (err error) {
		connection, err = amqp.Dial(url)
		return errors.Join(err, r.Died())
	}); err != nil {
		return err
	}
	r.Defer(connection.Close)
	if q.channel, err = connection.Channel(); err != nil {
		return err
	}
	if _, err := q.channel.QueueDeclare(rabbitFired, true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := q.channel.QueueDeclare(rabbitWaiting, true, false, false, false, amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": rabbitFired,
	}); err != nil {
		return err
	}
	if err := q.channel.Confirm(false); err != nil {
		return err
	}
	return startWorker(ctx, r, rig.RoleWorker, fired, workerRabbit, url)
}

func (q *rabbitmq) Arm(ctx context.Context, timers []firing.Timer) error {
	if q.sorted {
		timers = sorted(timers)
	}
	confirmations := make([]*amqp.DeferredConfirmation, 0, len(timers))
	for _, t := range timers {
		confirmation, err := q.channel.PublishWithDeferredConfirmWithContext(ctx, "", rabbitWaiting, true, false,
			amqp.Publishing{
				DeliveryMode: amqp.Persistent, Expiration: strconv.FormatInt(delay(t.Due).Milliseconds(), 10),
				Body: t.Payload(),
			})
		if err != nil {
			return err
		}
		confirmations = append(confirmations, confirmation)
	}
	for _, c := range confirmations {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return errors.Join(err, errors.New("rabbitmq refused a message"))
		}
	}
	return nil
}

// rabbitmqWorker consumes the second queue. Its argument is the URL.
func rabbitmqWorker(ctx context.Context, args []string, report *firing.Reporter) error {
	connection, err := amqp.Dial(args[0])
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	const prefetch = 1000
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, rabbitFired, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	if err := report.Ready(); err != nil {
		return err
	}
	for d := range deliveries {
		received := time.Now()
		n, err := firing.OfPayload(d.Body)
		if err != nil {
			return err
		}
		if err := report.Fired(firing.Firing{N: n, Received: received}); err != nil {
			return err
		}
		if err := d.Ack(false); err != nil {
			return ignoreEnd(ctx, err)
		}
	}
	return nil
}
