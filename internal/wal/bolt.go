package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"
)

// Bolt is the store on a bbolt file.
type Bolt struct {
	*core
	file *boltFile
}

// mapBytes is how much address space the file's map takes from the start. Growing a map waits for the readers under way and
// holds new ones up, so it is large enough to be grown hardly ever; only what is in use takes memory.
const mapBytes = 16 << 30

// OpenBolt opens the WAL, creating it where there is none, and reads it whole. Its errors: *LockedError, ErrVersion,
// *DamageError (the file is as it was; SetAside moves it out of the way), or that of a system call. Damage that concerns
// one group only is no error: see Group.Damaged.
func OpenBolt(cfg Config) (*Bolt, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = DefaultCacheBytes
	}
	if cfg.LockTimeout == 0 {
		cfg.LockTimeout = DefaultLockTimeout
	}
	f, err := openAndLock(cfg.Path, cfg.LockTimeout)
	if err != nil {
		return nil, err
	}
	s, err := openLocked(cfg, log, f, shrinkLeast)
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// openLocked opens a file that is open and locked, and rewrites it if it is mostly empty and no shorter than shrink.
func openLocked(cfg Config, log *slog.Logger, f *os.File, shrink int64) (*Bolt, error) {
	s := &Bolt{file: &boltFile{
		path: cfg.Path, f: f, log: log, reserved: cfg.ReservedBytes, latency: cfg.InjectLatency,
		growLeast: growLeast, trimReserve: trimReserve, shrinkLeast: shrink,
	}}
	if cfg.growBytes > 0 {
		s.file.growLeast, s.file.trimReserve, s.file.shrinkLeast = cfg.growBytes, cfg.growBytes, cfg.growBytes
	}
	met, err := newMetrics(cfg.Registerer, func() Size { return s.Size() })
	if err != nil {
		return nil, err
	}
	s.core = newCore(cfg.Path, log, met, cfg.CacheBytes)
	if s.boot = cfg.bootID; s.boot == "" {
		s.boot = bootID()
	}
	s.file.once = s.boot != ""
	s.backend = s.file
	s.file.observeAppend = met.appendLatency.Observe
	if err := s.load(); err != nil {
		met.unregister()
		return nil, err
	}
	return s, nil
}

// load reads the file and hands it to bbolt once it is found good.
func (s *Bolt) load() error {
	begin := time.Now()
	// What a process that was killed had written and not synced is read here like the rest, and is relied on like it.
	if err := s.file.f.Sync(); err != nil {
		return fmt.Errorf("sync WAL %s before it is read: %w", s.path, err)
	}
	if st, err := s.file.f.Stat(); err == nil {
		warm(s.file.f, st.Size())
	}
	replayed, pages, torn, err := readNewest(s.core, s.file.f)
	if err != nil {
		return err
	}
	replayed.install()
	s.core = replayed.core
	if torn != nil {
		s.log.Warn("the machine went down in the middle of a commit, which is left out: nothing that it held was acknowledged",
			"path", s.path, "commit", torn.txid)
		if err := s.file.withdraw(*torn, pages.meta); err != nil {
			return fmt.Errorf("WAL %s: take back a torn commit: %w", s.path, err)
		}
	}
	need := int64(pages.meta.pages) * int64(pages.meta.pageSize)
	if err := s.file.lengthen(need); err != nil {
		return err
	}
	if err := s.file.open(); err != nil {
		return err
	}
	if err := s.file.shrink(pages, s.tally); err != nil {
		s.file.db.Close()
		return err
	}
	size := s.Size()
	s.log.Info("opened WAL", "path", s.path, "replicas", len(s.logs), "entries", size.LiveEntries,
		"dead_records", size.TrashRecords, "file_bytes", size.FileBytes, "took", time.Since(begin))
	return nil
}

// boltFile is Bolt's backend.
type boltFile struct {
	path          string
	f             *os.File // bbolt's own; it closes it
	shrinkLeast   int64    // files below this length aren't rewritten
	db            *bbolt.DB
	log           *slog.Logger
	observeAppend func(float64)
	latency       func() time.Duration // Config.InjectLatency; nil: none

	growLeast, trimReserve int64

	once      bool  // a commit takes one sync (torn.go), and not bbolt's two
	reserved  int64 // bytes to leave free on the disk
	allocated int64 // the file's first bytes that are known to have blocks; the writer's alone
	size      atomic.Int64
	// broken: bbolt panicked inside a write transaction. Its locks may be held for ever, so it is never called again.
	broken atomic.Bool
}

// lengthen brings a file that ends before its last page up to its length: bbolt maps it and would fault there. The pages
// there are dead, or they would have been missed by now.
func (b *boltFile) lengthen(need int64) error {
	st, err := b.f.Stat()
	if err != nil {
		return fmt.Errorf("WAL %s: %w", b.path, err)
	}
	if st.Size() < need {
		b.log.Warn("WAL file was cut short, without loss: lengthened it", "path", b.path, "bytes", st.Size(), "to", need)
		if err := b.f.Truncate(need); err != nil {
			return fmt.Errorf("WAL %s: %w", b.path, err)
		}
	}
	return nil
}

// open opens bbolt on the file that is open and locked already, so that nobody gets in between.
func (b *boltFile) open() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &DamageError{Path: b.path, What: "bbolt can't open it", Err: caught(p)}
		}
	}()
	b.db, err = openDB(b.path, b.f, b.once)
	if err != nil {
		return fmt.Errorf("open WAL %s: %w", b.path, err)
	}
	st, err := b.f.Stat()
	if err != nil {
		return fmt.Errorf("WAL %s: %w", b.path, err)
	}
	b.size.Store(st.Size())
	if b.reserved < 0 {
		free, err := freeSpace(filepath.Dir(b.path))
		if err != nil {
			return fmt.Errorf("WAL %s: %w", b.path, err)
		}
		b.reserved = int64(free / 100)
	}
	return nil
}

// openDB opens bbolt on a file that is open already. noSync: the caller syncs.
func openDB(path string, f *os.File, noSync bool) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:         time.Second,
		PageSize:        pageSize,
		NoSync:          noSync,
		NoFreelistSync:  true, // the list of free pages would be written by every commit; it is rebuilt at open
		FreelistType:    bbolt.FreelistMapType,
		InitialMmapSize: mapBytes,
		OpenFile:        func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
}

// caught is the error that a recovered panic, or a fault while reading the map, stands for. A fault is only a panic while
// debug.SetPanicOnFault is on for the goroutine that reads. Recovering belongs around calls of bbolt alone, so that our own
// broken invariants stay panics.
func caught(p any) error {
	if e, ok := p.(error); ok {
		return &faultError{fmt.Errorf("bbolt panicked: %w", e)}
	}
	return &faultError{fmt.Errorf("bbolt panicked: %v", p)}
}

// apply implements backend.
func (b *boltFile) apply(muts []mutation, t *tally, trim bool) (err error) {
	if b.broken.Load() {
		return errors.New("bbolt panicked before")
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			b.broken.Store(true)
			err = caught(p)
		}
	}()
	return b.commit(muts, t, trim)
}

func (b *boltFile) commit(muts []mutation, t *tally, trim bool) error {
	tx, err := b.db.Begin(true)
	if err != nil {
		return err
	}
	if err := b.reserve(tx.Size(), muts, trim); err != nil {
		_ = tx.Rollback()
		return err
	}
	begin := time.Now()
	if err := put(tx, muts); err != nil {
		_ = tx.Rollback()
		return err
	}
	t.commit = uint64(tx.ID())
	if err := tx.Bucket([]byte{byte(bucketTally)}).Put(tallyKey, t.encode()); err != nil {
		_ = tx.Rollback()
		return err
	}
	b.observeAppend(float64(time.Since(begin).Microseconds()))
	if b.latency != nil {
		if d := b.latency(); d > 0 {
			<-time.After(d)
		}
	}
	if err := tx.Commit(); err != nil {
		return b.afterError(err)
	}
	if b.once {
		if err := syncData(b.f); err != nil {
			return fmt.Errorf("sync: %w", err)
		}
	}
	return nil
}

func put(tx *bbolt.Tx, muts []mutation) error {
	var open [256]*bbolt.Bucket
	for _, m := range muts {
		bucket := open[m.bucket]
		if bucket == nil {
			bucket = tx.Bucket([]byte{byte(m.bucket)})
			if m.bucket == bucketEntries {
				bucket.FillPercent = entriesFill
			}
			open[m.bucket] = bucket
		}
		var err error
		if m.value == nil {
			err = bucket.Delete(m.key)
		} else {
			err = bucket.Put(m.key, m.value)
		}
		if err != nil {
			return fmt.Errorf("bucket %q: %w", rune(m.bucket), err)
		}
	}
	return nil
}

// entriesFill: keys only ever come at the end, so a page that is split may as well be full. Measured with 512 entries of
// 256 bytes a commit: 1.50 bytes written per byte logged, against 1.63 at 0.95 and 2.95 at bbolt's default of 0.5.
const entriesFill = 1.0

// read implements backend.
func (b *boltFile) read(fn func(get getter) error) (err error) {
	if b.broken.Load() {
		return errors.New("bbolt panicked before")
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = caught(p)
		}
	}()
	tx, err := b.db.Begin(false)
	if err != nil {
		return &faultError{err}
	}
	defer tx.Rollback() //nolint:errcheck // of a read transaction, open by construction
	return fn(func(bucket bucketID, key []byte) []byte { return tx.Bucket([]byte{byte(bucket)}).Get(key) })
}

func (b *boltFile) fileBytes() int64 { return b.size.Load() }

// Close implements Store. Of a store that is closed in order the last commit is an empty one: whatever becomes of the pages
// that only the last commit wrote, nothing is missed by taking the one before (torn.go).
func (s *Bolt) Close() error {
	s.writer.Lock()
	if s.wrote && s.Err() == nil {
		_ = s.write(newPlan(s.core), true) // all is durable without it
		s.wrote = false
	}
	s.writer.Unlock()
	return s.core.Close()
}

// close implements backend. After a panic inside bbolt its locks may be held: then the file stays open, and locked, until
// the process ends.
func (b *boltFile) close() error {
	if b.broken.Load() {
		return nil
	}
	return b.db.Close()
}
