// Package migrating_test runs the blocks of docs/migrating.md that read timers out of other systems.
package migrating_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/timerd-io/timerd/internal/testenv"
)

// migrating returns the block of a language in a section of docs/migrating.md.
func migrating(t *testing.T, section, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/migrating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## "+section+"\n")
	rest, _, _ = strings.Cut(rest, "\n## ")
	block := regexp.MustCompile("(?ms)^```" + language + "\n(.*?)^```$").FindStringSubmatch(rest)
	if block == nil {
		t.Fatalf("no block of %s in section %s", language, section)
	}
	return block[1]
}

// movedLine is a line for timerd set --from.
type movedLine struct {
	Key     string          `json:"key"`
	At      int64           `json:"at"`
	Payload json.RawMessage `json:"payload"`
	Bytes   []byte          `json:"payload_base64"`
	NX      bool            `json:"nx"`
}

// moved runs a program and returns its lines by their keys.
func moved(t *testing.T, cmd *exec.Cmd) map[string]movedLine {
	t.Helper()
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, said.String())
	}
	lines := map[string]movedLine{}
	for text := range strings.Lines(string(out)) {
		var l movedLine
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		lines[l.Key] = l
	}
	return lines
}

// asynqProgram surrounds the guide's block for asynq. Its argument is the address of Redis.
const asynqProgram = `package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/hibiken/asynq"
)

func main() {
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: os.Args[1]})
`

// The lines of the guide have the times and payloads of asynq's tasks, byte for byte: of each page, and of retries.
func TestMovingFromAsynq(t *testing.T) {
	t.Parallel()
	server := asynq.RedisClientOpt{Addr: testenv.Redis(t).Client().Options().Addr}
	queue := asynq.NewClient(server)
	defer func() { _ = queue.Close() }()
	payloads := map[string]string{"1": `{"order":1}`, "2": "\x00\xff\xfe binary", "3": ""}
	for i := range 1000 {
		payloads[fmt.Sprint("many", i)] = fmt.Sprint(i)
	}
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	for id, payload := range payloads {
		task := asynq.NewTask("order:timeout", []byte(payload))
		if _, err := queue.EnqueueContext(t.Context(), task, asynq.TaskID(id), asynq.ProcessAt(at)); err != nil {
			t.Fatal(err)
		}
	}
	retried := failOnce(t, queue, server)

	source, binary := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "move")
	program := asynqProgram + migrating(t, "asynq", "go") + "}\n"
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := moved(t, exec.CommandContext(t.Context(), binary, server.Addr))
	if len(lines) != len(payloads)+1 {
		t.Errorf("%d lines, want %d", len(lines), len(payloads)+1)
	}
	for id, payload := range payloads {
		if l := lines["shop:order:timeout:"+id]; l.At != at.UnixMilli() || string(l.Bytes) != payload || !l.NX {
			t.Errorf("task %s: %+v, want %q at %d", id, l, payload, at.UnixMilli())
		}
	}
	l := lines["shop:order:timeout:"+retried.ID]
	if l.At != retried.NextProcessAt.UnixMilli() || !bytes.Equal(l.Bytes, retried.Payload) {
		t.Errorf("retry: %+v, want %q at %v", l, retried.Payload, retried.NextProcessAt)
	}
}

// failOnce enqueues a task, fails it, and returns it while it waits for a retry in an hour.
func failOnce(t *testing.T, queue *asynq.Client, server asynq.RedisClientOpt) *asynq.TaskInfo {
	t.Helper()
	if _, err := queue.EnqueueContext(t.Context(), asynq.NewTask("order:fails", []byte("again"))); err != nil {
		t.Fatal(err)
	}
	worker := asynq.NewServer(server, asynq.Config{
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
		LogLevel:       asynq.FatalLevel,
	})
	fail := func(context.Context, *asynq.Task) error { return errors.New("not yet") }
	if err := worker.Start(asynq.HandlerFunc(fail)); err != nil {
		t.Fatal(err)
	}
	defer worker.Shutdown()
	inspector := asynq.NewInspector(server)
	defer func() { _ = inspector.Close() }()
	var waiting []*asynq.TaskInfo
	testenv.Eventually(t, time.Minute, func() (err error) {
		if waiting, err = inspector.ListRetryTasks("default"); err == nil && len(waiting) != 1 {
			err = fmt.Errorf("%d tasks wait for a retry", len(waiting))
		}
		return err
	}, "the task to wait for a retry")
	return waiting[0]
}

// bullmqProgram surrounds the guide's block for BullMQ. It adds a job, one with another delay, one before a retry,
// and a job scheduler. Its arguments are the host and the port of Redis.
const bullmqProgram = `const { Queue, Worker } = require('bullmq');
const { Redis } = require('ioredis');
const connection = { host: process.argv[1], port: Number(process.argv[2]), maxRetriesPerRequest: null };
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
(async () => {
const queue = new Queue('orders', { connection });
const redis = new Redis(connection);
await queue.add('timeout', { order: 1 }, { delay: 3600_000 });
const changed = await queue.add('timeout', { order: 2 }, { delay: 3600_000 });
await queue.add('timeout', { order: 3 }, { attempts: 3, backoff: { type: 'fixed', delay: 3600_000 }, delay: 1 });
await wait(2000);
await changed.changeDelay(3600_000);
const worker = new Worker('orders', async () => { throw new Error('again'); }, { connection });
await new Promise((done) => worker.on('failed', done));
await worker.close();
await queue.upsertJobScheduler('daily', { pattern: '0 0 9 1 1 *' }, { name: 'timeout', data: {} });
`

// The lines of the guide have the times of BullMQ's jobs, also after a change of the delay and before a retry.
func TestMovingFromBullMQ(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("../../bullmq/node_modules/bullmq"); errors.Is(err, os.ErrNotExist) {
		t.Fatal("bullmq is not installed: bench/deps.sh bullmq")
	}
	host, port, _ := strings.Cut(testenv.Redis(t).Client().Options().Addr, ":")
	program := bullmqProgram + migrating(t, "BullMQ", "js") + "await queue.close();\nredis.disconnect();\n})();\n"
	cmd := exec.CommandContext(t.Context(), "node", "-e", program, host, port)
	cmd.Dir = "../../bullmq"
	before := time.Now()
	lines := moved(t, cmd)
	after := time.Now()
	if len(lines) != 3 {
		t.Errorf("%d lines, want 3: %v", len(lines), lines)
	}
	for order, since := range map[string]time.Duration{"1": 0, "2": 2 * time.Second, "3": 2 * time.Second} {
		l := lines["shop:order:timeout:"+order]
		low, high := before.Add(time.Hour+since).UnixMilli(), after.Add(time.Hour).UnixMilli()
		if l.At < low || l.At > high || string(l.Payload) != `{"order":`+order+`}` || !l.NX {
			t.Errorf("job %s: %+v, want a time from %d to %d", order, l, low, high)
		}
	}
}
