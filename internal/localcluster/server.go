package localcluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// ExitedError says that a server ended before it was ready.
type ExitedError struct {
	Name   string
	Status string // how the process ended, if it was this process's child
	Output string // the last it printed
	Log    string
}

func (e *ExitedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s ended before it was ready", e.Name)
	if e.Status != "" {
		fmt.Fprintf(&b, " (%s)", e.Status)
	}
	if e.Output != "" {
		fmt.Fprintf(&b, ": %s", e.Output)
	}
	fmt.Fprintf(&b, "; its log is %s", e.Log)
	return b.String()
}

// portTakenError says that a server wasn't started because another program has its port.
type portTakenError struct{ server, address string }

func (e *portTakenError) Error() string {
	return fmt.Sprintf("%s needs %s, which another program listens on: end that one and try again", e.server, e.address)
}

// launch starts the server's process and saves its pid. The caller holds the lock.
func (c *Cluster) launch(st *state, s *serverState) error {
	program, err := findBinary(s.Role, c.cfg.BinDir)
	if err != nil {
		return err
	}
	for _, addr := range []string{s.RPC, s.Web} {
		if !portFree(addr) {
			return &portTakenError{server: s.Name, address: addr}
		}
	}
	logDir := filepath.Join(c.serverDir(s), logDirName)
	if err := os.MkdirAll(logDir, 0o755); err != nil {
		return fmt.Errorf("%s: make its folder: %w", s.Name, err)
	}
	stderr, err := c.openStderr(s)
	if err != nil {
		return err
	}
	defer stderr.Close()
	child, start, err := spawn(program, c.arguments(st, s), stderr)
	if err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	c.mu.Lock()
	c.children[s.Name] = child
	c.mu.Unlock()
	s.Pid, s.Start = child.pid, start
	if err := st.save(c.cfg.Dir); err != nil {
		// A server that no state file knows could never be stopped by name.
		return errors.Join(err, sendSignal(s.Pid, s.Start, syscall.SIGKILL))
	}
	c.cfg.Notify(fmt.Sprintf("%s started: rpc %s, web http://%s/, pid %d", s.Name, s.RPC, s.Web, s.Pid))
	return nil
}

// arguments returns the command line of the server, the user's own flags last, so that they win.
func (c *Cluster) arguments(st *state, s *serverState) []string {
	dir := c.serverDir(s)
	masters := strings.Join(st.masterAddresses(), ",")
	advertised := s.RPC
	if c.cfg.Advertise != nil {
		advertised = c.cfg.Advertise(s.Name, s.RPC)
	}
	args := []string{
		"--rpc_bind_addresses=" + s.RPC,
		"--rpc_advertised_addresses=" + advertised,
		"--webserver_interface=" + host(s.Web),
		"--webserver_port=" + port(s.Web),
		"--fs_wal_dir=" + filepath.Join(dir, walDirName),
		"--fs_data_dirs=" + filepath.Join(dir, dataDirName),
		"--log_dir=" + filepath.Join(dir, logDirName),
	}
	if s.Role == RoleMaster {
		args = append(args, "--master_addresses="+masters)
	} else {
		args = append(args, "--tserver_master_addrs="+masters)
	}
	return append(args, s.Flags...)
}

// maxStderrLog bounds the file of what servers print before they log: one that is longer is begun anew.
const maxStderrLog = 1 << 20

func (c *Cluster) openStderr(s *serverState) (*os.File, error) {
	path := c.stderrFile(s)
	if info, err := os.Stat(path); err == nil && info.Size() > maxStderrLog {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("%s: %w", s.Name, err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	if _, err := fmt.Fprintf(f, "%s%s\n", startMark, time.Now().UTC().Format(time.RFC3339)); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", s.Name, err)
	}
	return f, nil
}

// startMark begins the line that stands before each start in stderr.log.
const startMark = "--- start "

func (c *Cluster) stderrFile(s *serverState) string {
	return filepath.Join(c.serverDir(s), logDirName, stderrLogName)
}

// awaitReady returns when the server says that it is ready, with an *ExitedError as soon as its process is gone.
func (c *Cluster) awaitReady(ctx context.Context, s *serverState) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.ReadyTimeout)
	defer cancel()
	for delay := 10 * time.Millisecond; ; delay = min(2*delay, 200*time.Millisecond) {
		ok, why := ready(ctx, s.Web)
		// Looked at after the answer: another program may have answered in the place of one that found its port taken.
		if !alive(s.Pid, s.Start) {
			return c.exited(s)
		}
		if ok {
			return nil
		}
		if err := pause(ctx, delay); errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("%s isn't ready after %v (%s); its log is %s", s.Name, c.cfg.ReadyTimeout, why, c.logFile(s))
		} else if err != nil {
			return err
		}
	}
}

func (c *Cluster) exited(s *serverState) *ExitedError {
	e := &ExitedError{Name: s.Name, Output: lastOutput(c.stderrFile(s)), Log: c.logFile(s)}
	c.mu.Lock()
	child := c.children[s.Name]
	c.mu.Unlock()
	if child != nil && child.pid == s.Pid {
		<-child.done
		if child.err != nil {
			e.Status = child.err.Error()
		}
	}
	return e
}

// lastOutput returns the end of what a server printed since its last start, in one line.
func lastOutput(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const tail = 4 << 10
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-tail), tail))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if strings.HasPrefix(lines[i], startMark) {
			lines = lines[i+1:]
			break
		}
	}
	const most = 5
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return strings.Join(lines, " / ")
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}

func host(addr string) string { return addr[:strings.LastIndexByte(addr, ':')] }

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }
