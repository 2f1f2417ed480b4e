// Package wal keeps the write-ahead log.
package wal
