package wal

import (
	"errors"
	"fmt"
)

var (
	// ErrNoSpace: the disk is full, or filled up to the reserve. Nothing was changed and nothing has failed; the same batch
	// may be committed again once there is room.
	ErrNoSpace = errors.New("no space left for the WAL")
	// ErrFailed: a write or sync of the file went wrong, or its map could not be read. Nothing that uses the file may go on
	// and nothing may be tried again: what the disk holds of the last commit is unknown. Always inside a *FailedError.
	ErrFailed = errors.New("the WAL has failed")
	// ErrDamaged: what stands on disk isn't what was written. Always inside a *DamageError.
	ErrDamaged = errors.New("the WAL is damaged")
	// ErrLocked: another process holds the file. Always inside a *LockedError.
	ErrLocked = errors.New("the WAL is in use")
	// ErrVersion: the file was written by a newer release.
	ErrVersion = errors.New("the WAL has a format that this release doesn't know")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the WAL is closed")
)

// FailedError says why a store failed for good. errors.Is(err, ErrFailed) holds.
type FailedError struct {
	Path string
	Err  error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("WAL %s has failed for good: %v; its replicas must be rebuilt or the server restarted", e.Path, e.Err)
}

// Unwrap makes both ErrFailed and the cause visible to errors.Is.
func (e *FailedError) Unwrap() []error { return []error{ErrFailed, e.Err} }

// DamageError says what was found damaged: in the whole file where Group is 0, else in that group's log alone.
// errors.Is(err, ErrDamaged) holds.
type DamageError struct {
	Path  string
	Group uint64
	What  string
	Err   error // the cause, where there is one
}

func (e *DamageError) Error() string {
	s := "WAL " + e.Path + " is damaged: " + e.What
	if e.Group != 0 {
		s = fmt.Sprintf("WAL %s is damaged for replica %d: %s", e.Path, e.Group, e.What)
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes both ErrDamaged and the cause visible to errors.Is.
func (e *DamageError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrDamaged}
	}
	return []error{ErrDamaged, e.Err}
}

// LockedError says who holds the file, as far as the system tells. errors.Is(err, ErrLocked) holds.
type LockedError struct {
	Path   string
	Holder string // "process 123 (nyala-tserver)", or "another process"
}

func (e *LockedError) Error() string {
	return fmt.Sprintf("WAL %s is held by %s; stop it first, or ask that server for its entries", e.Path, e.Holder)
}

// Unwrap makes ErrLocked visible to errors.Is.
func (e *LockedError) Unwrap() error { return ErrLocked }
