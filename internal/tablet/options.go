package tablet

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/nyaladb/nyala/internal/ident"
)

// Options configure a Store. A zero field takes its value from DefaultOptions.
type Options struct {
	// Dir is the store's folder, made if it isn't there.
	Dir string
	// FS is the file system; nil: the real one.
	FS vfs.FS
	// CacheBytes is what the block cache has at least; while memtables are small it has MaxMemtableBytes more.
	CacheBytes int64
	// MemtableBytes is the size at which a memtable is flushed.
	MemtableBytes int64
	// CompactionConcurrency is the most compactions at once.
	CompactionConcurrency int
	// MaxMemtableBytes and MaxL0Sublevels are where Pressure says to refuse writes. Pebble itself never stops a write here.
	MaxMemtableBytes int64
	MaxL0Sublevels   int

	// RememberResponsesTTL and RememberClientsTTL are how long answers and clients are remembered for exactly-once writes,
	// on the timestamps of applied operations, where an operation doesn't say: a leader writes its own into each. MaxRequests
	// and MaxClients bound how many a tablet remembers; they take part in what is applied and are part of the format.
	RememberResponsesTTL time.Duration
	RememberClientsTTL   time.Duration
	MaxRequests          int
	MaxClients           int

	// OnDurable is told after each memtable flush how far each replica is durable whose state moved since it was last told.
	// It runs on a goroutine of the store's own, one call at a time; it may call the store's methods but Close.
	OnDurable func(map[ident.LocalNumber]ident.Index)

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics are published
}

// DefaultOptions are the options that a zero field stands for.
func DefaultOptions() Options {
	return Options{
		CacheBytes:            128 << 20,
		MemtableBytes:         128 << 20,
		CompactionConcurrency: 2,
		MaxMemtableBytes:      512 << 20,
		MaxL0Sublevels:        24,
		RememberResponsesTTL:  600 * time.Second,
		RememberClientsTTL:    3600 * time.Second,
		MaxRequests:           1 << 14,
		MaxClients:            1 << 14,
		Logger:                slog.New(slog.DiscardHandler),
	}
}

func withDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func (o *Options) setDefaults() {
	d := DefaultOptions()
	withDefault(&o.FS, vfs.Default)
	withDefault(&o.CacheBytes, d.CacheBytes)
	withDefault(&o.MemtableBytes, d.MemtableBytes)
	withDefault(&o.CompactionConcurrency, d.CompactionConcurrency)
	withDefault(&o.MaxMemtableBytes, max(d.MaxMemtableBytes, 4*o.MemtableBytes))
	withDefault(&o.MaxL0Sublevels, d.MaxL0Sublevels)
	withDefault(&o.RememberResponsesTTL, d.RememberResponsesTTL)
	withDefault(&o.RememberClientsTTL, d.RememberClientsTTL)
	withDefault(&o.MaxRequests, d.MaxRequests)
	withDefault(&o.MaxClients, d.MaxClients)
	withDefault(&o.Logger, d.Logger)
}

// Validate joins all faults into one error. Zero fields are no faults.
func (o Options) Validate() error {
	o.setDefaults()
	var errs []error
	atLeast := func(name string, v, least int64) {
		if v < least {
			errs = append(errs, fmt.Errorf("tablet store: %s is %d, want at least %d", name, v, least))
		}
	}
	if o.Dir == "" {
		errs = append(errs, errors.New("tablet store: Dir is empty: name the folder"))
	}
	atLeast("CacheBytes", o.CacheBytes, 0)
	atLeast("MemtableBytes", o.MemtableBytes, 64<<10)
	atLeast("CompactionConcurrency", int64(o.CompactionConcurrency), 1)
	atLeast("MaxMemtableBytes", o.MaxMemtableBytes, 2*o.MemtableBytes)
	atLeast("MaxL0Sublevels", int64(o.MaxL0Sublevels), 4)
	atLeast("RememberResponsesTTL", int64(o.RememberResponsesTTL), 0)
	atLeast("MaxRequests", int64(o.MaxRequests), 1)
	atLeast("MaxClients", int64(o.MaxClients), 1)
	if o.RememberClientsTTL < o.RememberResponsesTTL {
		errs = append(errs, fmt.Errorf("tablet store: RememberClientsTTL %v is below RememberResponsesTTL %v: an answer is no use without its client",
			o.RememberClientsTTL, o.RememberResponsesTTL))
	}
	return errors.Join(errs...)
}

func (o *Options) requestLimits() requestLimits {
	return requestLimits{
		responsesTTL: o.RememberResponsesTTL, clientsTTL: o.RememberClientsTTL,
		maxRecords: o.MaxRequests, maxClients: o.MaxClients,
	}
}
