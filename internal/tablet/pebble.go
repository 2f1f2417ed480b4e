package tablet

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// storeFormat is Pebble's on-disk format, fixed so that a newer Pebble changes it only when we say so.
const storeFormat = pebble.FormatTableFormatV6

// bloomBitsPerKey makes about 1 % of the lookups of absent keys read a block.
const bloomBitsPerKey = 10

// neverStop is where Pebble would hold a write back. It must not: a write that is held is already committed in the log, and
// the group's worker would stand still. Who proposes asks Pressure first.
const neverStop = 1 << 20

// Pebble takes the memory of memtables out of its cache. With a cache of their size nothing was left for blocks, and each
// lookup of an absent key read its file's whole filter from disk anew: the cache is made larger by all that memtables may
// take, so that CacheBytes are always there.

// Most of what a bulk load costs is compacting: 34 % of a server's CPU when two memtables of 64 MiB made a compaction. Keys that rise
// in each tablet still make files that span all of the store, so each compaction writes most of the level below anew. Fewer and
// larger ones cost a lookup at most two filters more.

// pebbleOptions returns the options of the store's database. notify is called after each change of memtables and levels; it
// doesn't block.
func pebbleOptions(o *Options, notify func(flushed bool)) *pebble.Options {
	logger := pebbleLogger{o.Logger}
	var failures quietLog
	po := &pebble.Options{
		Comparer:                    comparer,
		FS:                          o.FS,
		DisableWAL:                  true,
		FormatMajorVersion:          storeFormat,
		CacheSize:                   o.CacheBytes + o.MaxMemtableBytes,
		MemTableSize:                uint64(o.MemtableBytes),
		MemTableStopWritesThreshold: neverStop,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       neverStop,
		LBaseMaxBytes:               256 << 20,
		MaxOpenFiles:                1000,
		CompactionConcurrencyRange:  func() (int, int) { return 1, o.CompactionConcurrency },
		FlushDelayDeleteRange:       10 * time.Second,
		LoggerAndTracer:             logger,
		EventListener: &pebble.EventListener{
			FlushBegin:    func(pebble.FlushInfo) { notify(false) },
			FlushEnd:      func(pebble.FlushInfo) { notify(true) },
			CompactionEnd: func(pebble.CompactionInfo) { notify(false) },
			BackgroundError: func(err error) {
				// Pebble tries again at once, and again: a full disk must not be filled with words about it.
				if !failures.due(time.Now()) {
					return
				}
				o.Logger.Error("tablet store: background work failed and will be tried again", "error", err)
			},
			// The default ends the process. A read that meets the damage gets the error and fails its replica alone.
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				o.Logger.Error("tablet store: a file is damaged", "file", i.Path, "error", i.Details)
			},
			DiskSlow: func(i pebble.DiskSlowInfo) {
				o.Logger.Warn("tablet store: the disk is slow", "file", i.Path, "op", i.OpType.String(), "duration", i.Duration)
			},
			WriteStallBegin: func(i pebble.WriteStallBeginInfo) {
				o.Logger.Error("tablet store: writes are held back", "reason", i.Reason)
			},
		},
	}
	for i := range po.Levels {
		po.Levels[i].BlockSize = 32 << 10
		po.Levels[i].IndexBlockSize = 256 << 10
		po.Levels[i].FilterPolicy = bloom.FilterPolicy(bloomBitsPerKey)
		po.Levels[i].FilterType = pebble.TableFilter
		po.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.SnappyCompression }
	}
	return po
}

// quietLog lets one message through in each quietPeriod.
type quietLog struct{ last atomic.Int64 }

const quietPeriod = 10 * time.Second

func (q *quietLog) due(now time.Time) bool {
	last := q.last.Load()
	return now.UnixNano()-last >= int64(quietPeriod) && q.last.CompareAndSwap(last, now.UnixNano())
}

// pebbleLogger sends Pebble's messages where ours go. Pebble's are free text at every step: debug level but for errors.
type pebbleLogger struct{ l *slog.Logger }

var _ pebble.LoggerAndTracer = pebbleLogger{}

// Infof implements pebble.Logger.
func (p pebbleLogger) Infof(format string, args ...any) {
	if p.l.Enabled(context.Background(), slog.LevelDebug) {
		p.l.Debug("pebble", "message", fmt.Sprintf(format, args...))
	}
}

// Errorf implements pebble.Logger.
func (p pebbleLogger) Errorf(format string, args ...any) {
	p.l.Error("pebble", "message", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger. Pebble calls it where it can't go on, such as after a failed write of its manifest, and
// relies on it not to return. The process ends; what the store lost is replayed from the log.
func (p pebbleLogger) Fatalf(format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	p.l.Error("pebble can't go on", "message", msg)
	panic("tablet store: " + msg) //nolint:forbidigo // not our error, and there is no way back into Pebble
}

// Eventf implements pebble.LoggerAndTracer.
func (pebbleLogger) Eventf(context.Context, string, ...any) {}

// IsTracingEnabled implements pebble.LoggerAndTracer.
func (pebbleLogger) IsTracingEnabled(context.Context) bool { return false }
