package consume_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/timerd-io/timerd/internal/testenv"
)

// modeVariable makes the test binary a command for timerd consume. Its value is the command's behaviour.
const modeVariable = "TIMERD_TEST_COMMAND"

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVariable); mode != "" {
		behave(mode)
		return
	}
	testenv.Main(m)
}

// behave reads events and answers as a mode says. Most modes behave badly with the timer "bad" alone.
func behave(mode string) {
	if strings.HasPrefix(mode, "stubborn") {
		signal.Ignore(syscall.SIGTERM)
	}
	if mode == "unread" {
		select {}
	}
	out := func(format string, args ...any) { fmt.Fprintf(os.Stdout, format+"\n", args...) }
	if mode == "early" {
		out(`{"result":"done"}`)
	}
	events := bufio.NewReader(os.Stdin)
	for {
		line, err := events.ReadString('\n')
		if err != nil {
			if strings.HasPrefix(mode, "stubborn") {
				select {}
			}
			return
		}
		var e struct {
			ID      string          `json:"id"`
			TimerID string          `json:"timerid"`
			Data    json.RawMessage `json:"data"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			panic(err)
		}
		if e.TimerID == "bad" && misbehave(mode, e.ID, out) {
			continue
		}
		if mode == "split" {
			out(`"done"}`) // the end of a line that began before this event
		}
		var payload struct {
			Answer json.RawMessage `json:"answer"`
		}
		if json.Unmarshal(e.Data, &payload) == nil && payload.Answer != nil { // the payload has the answer
			out("%s", strings.ReplaceAll(string(payload.Answer), "ID", e.ID))
			continue
		}
		out(`{"id":%q,"result":"done"}`, e.ID)
	}
}

// awaitInput waits until something is to be read from standard input, or it has ended.
func awaitInput() {
	for ready := 0; ready == 0; {
		ready, _ = unix.Poll([]unix.PollFd{{Events: unix.POLLIN}}, -1) // a signal cuts it short
	}
}

// misbehave handles the bad event in a mode, and reports whether that was all.
func misbehave(mode, id string, out func(string, ...any)) bool {
	switch mode {
	case "exit":
		os.Exit(3) //nolint:forbidigo // it is a command here
	case "silent", "stubborn-silent":
		return true
	case "chatty":
		for range 1000 {
			out("still working on %s", id)
		}
	case "doubled":
		out(`{"result":"done"}`)
		awaitInput() // the next event is being handed over
		out(`{"result":"done"}`)
		return true
	case "split":
		fmt.Fprintf(os.Stdout, `{"id":%q,"result":"done"}`+"\n"+`{"result":`, id)
		return true
	case "crowded":
		out(`{"result":"done"}`)
	case "unknown":
		out(`{"id":"nobody@1.1","result":"done"}`)
	case "twice":
		out(`{"id":%q,"result":"done"}`, id)
	case "huge":
		out("%s", strings.Repeat("x", 10<<20))
	case "half":
		fmt.Fprintf(os.Stdout, `{"id":%q,"result":"do`, id)
		os.Exit(0) //nolint:forbidigo // it is a command here
	case "last-words":
		out(`{"id":%q,"result":"done"}`, id)
		os.Exit(0) //nolint:forbidigo // it is a command here
	case "closes-output":
		_ = os.Stdout.Close()
		return true
	case "forks":
		left := exec.Command("sleep", "600")
		left.Stdout = os.Stdout
		if err := left.Start(); err != nil {
			panic(err)
		}
		os.Exit(4) //nolint:forbidigo // it is a command here
	case "escapes":
		left := exec.Command("sleep", "5")
		left.Stdout, left.SysProcAttr = os.Stdout, &syscall.SysProcAttr{Setsid: true}
		if err := left.Start(); err != nil {
			panic(err)
		}
		os.Exit(4) //nolint:forbidigo // it is a command here
	case "slow":
		<-time.After(1500 * time.Millisecond) // longer than the consumer's AckWait
	}
	return false
}
