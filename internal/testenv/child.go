package testenv

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// child is a started process. All methods may be called from any goroutine.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the process has been waited for
	err  error         // Wait's result; valid after done
}

// startChild starts cmd and waits for it in the background. On Linux the kernel kills the process
// when this one dies, however it dies.
//
// The kernel ties that to the thread that started the process, not to the whole program, so that
// thread is kept for as long as the process lives.
func startChild(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = dieWithParent()
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// signal returns os.ErrProcessDone when the process has ended.
func (c *child) signal(sig syscall.Signal) error {
	select {
	case <-c.done:
		return os.ErrProcessDone
	default:
		return c.cmd.Process.Signal(sig)
	}
}
