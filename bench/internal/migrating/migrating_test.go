// Package migrating_test runs the blocks of docs/migrating.md that read timers out of other systems.
package migrating_test

import (
	"encoding/json"
	"errors"
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

// The lines that the guide makes of asynq's tasks have their times and payloads, byte for byte.
func TestMovingFromAsynq(t *testing.T) {
	t.Parallel()
	address := testenv.Redis(t).Client().Options().Addr
	queue := asynq.NewClient(asynq.RedisClientOpt{Addr: address})
	defer func() { _ = queue.Close() }()
	payloads := map[string]string{"1": `{"order":1}`, "2": "\x00\xff\xfe binary", "3": ""}
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	for id, payload := range payloads {
		if _, err := queue.EnqueueContext(t.Context(), asynq.NewTask("order:timeout", []byte(payload)), asynq.TaskID(id), asynq.ProcessAt(at)); err != nil {
			t.Fatal(err)
		}
	}
	source, binary := filepath.Join(t.TempDir(), "main.go"), filepath.Join(t.TempDir(), "move")
	program := "package main\n\nimport (\n\t\"encoding/json\"\n\t\"log\"\n\t\"os\"\n\n\t\"github.com/hibiken/asynq\"\n)\n\nfunc main() {\n" +
		"inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: os.Args[1]})\n" + migrating(t, "asynq", "go") + "}\n"
	if err := os.WriteFile(source, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := moved(t, exec.CommandContext(t.Context(), binary, address))
	for id, payload := range payloads {
		if l := lines["shop:order:timeout:"+id]; l.At != at.UnixMilli() || string(l.Bytes) != payload || !l.NX {
			t.Errorf("task %s: %+v, want %q at %d", id, l, payload, at.UnixMilli())
		}
	}
}

// The lines that the guide makes of BullMQ's jobs have the times at which it would run them, also after a change of the delay and while
// they wait for a retry.
func TestMovingFromBullMQ(t *testing.T) {
	t.Parallel()
	address := testenv.Redis(t).Client().Options().Addr
	host, port, _ := strings.Cut(address, ":")
	if _, err := os.Stat("../../bullmq/node_modules/bullmq"); errors.Is(err, os.ErrNotExist) {
		t.Fatal("bullmq is not installed: bench/deps.sh bullmq")
	}
	program := "const { Queue, Worker } = require('bullmq');\nconst { Redis } = require('ioredis');\n" +
		"const connection = { host: '" + host + "', port: " + port + ", maxRetriesPerRequest: null };\n" +
		"(async () => {\nconst queue = new Queue('orders', { connection });\nconst redis = new Redis(connection);\n" +
		"const wait = (ms) => new Promise((done) => setTimeout(done, ms));\n" +
		"await queue.add('timeout', { order: 1 }, { delay: 3600_000 });\n" +
		"const changed = await queue.add('timeout', { order: 2 }, { delay: 3600_000 });\n" +
		"await queue.add('timeout', { order: 3 }, { attempts: 3, backoff: { type: 'fixed', delay: 3600_000 }, delay: 1 });\n" +
		"await wait(2000);\nawait changed.changeDelay(3600_000);\n" +
		"const worker = new Worker('orders', async () => { throw new Error('again'); }, { connection });\n" +
		"await new Promise((done) => worker.on('failed', done));\nawait worker.close();\n" +
		"console.error(Date.now());\n" + migrating(t, "BullMQ", "js") + "await queue.close();\nredis.disconnect();\n})();\n"
	cmd := exec.CommandContext(t.Context(), "node", "-e", program)
	cmd.Dir = "../../bullmq"
	before := time.Now()
	lines := moved(t, cmd)
	after := time.Now()
	for order, since := range map[string]time.Duration{"1": 0, "2": 2 * time.Second, "3": 2 * time.Second} {
		l := lines["shop:order:timeout:"+order]
		low, high := before.Add(time.Hour+since).UnixMilli(), after.Add(time.Hour).UnixMilli()
		if l.At < low || l.At > high || string(l.Payload) != `{"order":`+order+`}` || !l.NX {
			t.Errorf("job %s: %+v, want a time from %d to %d", order, l, low, high)
		}
	}
}
