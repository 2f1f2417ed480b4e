//go:build unix && !linux

package wal

import "os"

// allocate makes the file at least size bytes long. Without a call that reserves blocks, a full disk shows in the write.
func allocate(f *os.File, size int64) error { return extend(f, size) }

func syncData(f *os.File) error { return f.Sync() }

// bootID is empty: unknown.
func bootID() string { return "" }

func lockHolder(*os.File) string { return "another process" }
