package localcluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// child is a server that this process started itself, and so has to wait for.
type child struct {
	pid  int
	done chan struct{} // closed once it has ended and been waited for
	err  error         // how it ended; valid after done
}

// spawn starts the program in a session of its own, so that neither Ctrl-C nor a closed terminal reaches it, with its
// standard error (and output) appended to the file. It returns the process's start time too.
func spawn(program string, args []string, stderr *os.File) (*child, string, error) {
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = stderr, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("start %s: %w", program, err)
	}
	// Read before anybody waits for the process: until then its pid is its own, even if it has ended already.
	start, _, err := processStart(cmd.Process.Pid)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, "", fmt.Errorf("start %s: its start time: %w", program, err)
	}
	c := &child{pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		c.err = cmd.Wait()
		close(c.done)
	}()
	return c, start, nil
}

// alive says whether the process that pid and start name still runs. A process that has ended but wasn't waited for
// doesn't.
func alive(pid int, start string) bool {
	if pid <= 0 {
		return false
	}
	got, running, err := processStart(pid)
	return err == nil && running && got == start
}

// sendSignal sends sig to the process that pid and start name; one that is gone is no error.
func sendSignal(pid int, start string, sig syscall.Signal) error {
	if !alive(pid, start) {
		return nil
	}
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v to process %d: %w", sig, pid, err)
	}
	return nil
}
