package devserver

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a started process. Its methods may be called from any goroutine.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// StartProcess starts cmd and waits for it in the background. It sets cmd.SysProcAttr: the process gets a group of its
// own, so that a Ctrl-C in the terminal reaches this program alone, and on Linux the kernel kills it when this program
// dies for any reason.
//
// The kernel ties that to the thread that started the process, not to the whole program, so that thread lives as long
// as the process.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	cmd.SysProcAttr = attributes()
	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		_ = cmd.Wait() // its state says how it ended
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Pid returns the process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed once the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode returns the exit code, -1 if a signal ended the process. Call it after Done is closed.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Stop ends the process with SIGTERM, and with SIGKILL if it still runs after grace. It returns once the process is
// gone, at once if it is already.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return ignoreDone(err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-timer.C:
	}
	err := ignoreDone(p.Signal(syscall.SIGKILL))
	<-p.done
	return err
}

// Signal sends a signal to the process. It returns os.ErrProcessDone if that has ended.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

func ignoreDone(err error) error {
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}
