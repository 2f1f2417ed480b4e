package cli

import (
	"context"
	"errors"
	"fmt"
)

// The exit codes. They are part of what scripts rely on: nyala --help lists them.
const (
	exitOK          = 0
	exitFailed      = 1   // the command failed; wal check: something was found
	exitUsage       = 2   // the command line is wrong; nothing was done
	exitNoCluster   = 3   // no master, or no local cluster, could be reached
	exitRejected    = 4   // load: some rows were rejected, the others are written
	exitUnhealthy   = 5   // ksck: the cluster isn't healthy; demo: an answer was wrong
	exitInterrupted = 130 // Ctrl-C or SIGTERM
)

const exitCodesHelp = `Exit codes:
  0    done
  1    the command failed; wal check: something was found
  2    the command line is wrong; nothing was done
  3    no master, or no local cluster, could be reached
  4    table load: some rows were rejected, the others are written
  5    cluster ksck: the cluster isn't healthy; demo: an answer was wrong
  130  interrupted`

// exitError carries an exit code. Without a message nothing is printed: the command has said it all.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a fault of the command line.
func usageError(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// exitCode returns the code for an error that a command returned.
func exitCode(err error) int {
	var e *exitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &e):
		return e.code
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	return exitFailed
}
