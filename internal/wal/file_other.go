//go:build unix && !linux

package wal

import "os"

// allocate makes the file at least size bytes long. Without a call that reserves blocks, a full disk shows in the write.
func allocate(f *os.File, size int64) error { return extend(f, size) }

func lockHolder(*os.File) string { return "another process" }
