package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// Repair is a stopped server's WAL, held alone, for what no server does to its own log after a restart: taking entries out of
// it because an operator says so. The order is FindCut, Backup, Apply. Until Apply has returned nil the file holds what it
// held, and after it the entries are gone, whenever a crash comes in between: Apply is one commit.
//
// A Repair is for one goroutine.
type Repair struct {
	store *Bolt
}

// OpenRepair opens the file at path, which must exist. A *LockedError says which process holds it; there is no waiting.
func OpenRepair(path string) (*Repair, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open WAL: %w", err)
	}
	err = lockAt(f, path, true)
	var s *Bolt
	if err == nil {
		cfg := Config{Path: path, CacheBytes: 1}
		s, err = openLocked(cfg, slog.New(slog.DiscardHandler), f, math.MaxInt64)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Repair{store: s}, nil
}

// Close lets go of the file.
func (r *Repair) Close() error { return r.store.Close() }

// Meta returns a value set by Batch.SetMeta, nil where there is none; not to be changed.
func (r *Repair) Meta(key MetaKey) []byte { return r.store.Meta(key) }

// Cut is what a repair takes out of one tablet's log: the first entry with a timestamp above a given one, and all that follow.
type Cut struct {
	Number   ident.LocalNumber
	TabletID ident.TabletID
	From, To ident.OpID // the first and the last entry
	Entries  int
	Bytes    int64 // of their data
	// Lowest and Highest are the bounds of the entries' timestamps; 0: none of them has one.
	Lowest, Highest hybridtime.Timestamp
	// Committed is how many of them are known to be committed: those at or below the durable commit index. That index is
	// written with a group's next entries and not by itself, so the others may be committed, and applied, as well.
	Committed int
	// Start is the position after which the log begins: the tablet's store holds what lies at or below it durably.
	Start ident.OpID
	// Previous is the entry before From, after which the log will end.
	Previous ident.OpID

	log    *Log
	backup string // written; empty so far
}

// FindCut looks for the tablet's entries to take out; nil where no entry has a timestamp above after.
func (r *Repair) FindCut(tablet ident.TabletID, after hybridtime.Timestamp) (*Cut, error) {
	l, err := r.find(tablet)
	if err != nil {
		return nil, err
	}
	for i := range l.slots {
		if l.slots[i].stamp > after {
			return l.cutAt(i), nil
		}
	}
	return nil, nil
}

// find returns the log of the tablet's replica.
func (r *Repair) find(tablet ident.TabletID) (*Log, error) {
	var found *Log
	for _, g := range r.store.Groups() {
		switch {
		case g.TabletID != tablet:
			continue
		case g.Damaged != nil:
			return nil, fmt.Errorf("%w: nothing can be cut from a damaged log; the replica has to be rebuilt from the others", g.Damaged)
		case found != nil:
			return nil, fmt.Errorf("WAL %s holds replicas %d and %d of tablet %s", r.store.path, found.number, g.Number, tablet)
		}
		found = r.store.Log(g.Number)
	}
	if found == nil {
		return nil, fmt.Errorf("WAL %s holds no replica of tablet %s", r.store.path, tablet)
	}
	return found, nil
}

// cutAt describes the cut that begins with slot k.
func (l *Log) cutAt(k int) *Cut {
	opID := func(k int) ident.OpID {
		if k < 0 {
			return l.start
		}
		return ident.OpID{Term: ident.Term(l.slots[k].term), Index: l.start.Index + ident.Index(k) + 1}
	}
	c := &Cut{
		Number: l.number, TabletID: l.tablet, From: opID(k), To: opID(len(l.slots) - 1), Previous: opID(k - 1), Start: l.start,
		Entries: len(l.slots) - k, Bytes: bytesOf(l.slots[k:]), log: l,
	}
	if from := uint64(c.From.Index); l.hard.commit >= from {
		c.Committed = int(l.hard.commit - from + 1)
	}
	for _, s := range l.slots[k:] {
		if s.stamp != 0 && (c.Lowest == 0 || s.stamp < c.Lowest) {
			c.Lowest = s.stamp
		}
		c.Highest = max(c.Highest, s.stamp)
	}
	return c
}

// CommittedError says that a cut would take entries out that are known to be committed.
type CommittedError struct {
	TabletID  ident.TabletID
	From      ident.OpID
	Committed int
}

func (e *CommittedError) Error() string {
	are := "are"
	if e.Committed == 1 {
		are = "is"
	}
	return fmt.Sprintf("tablet %s: %d of the entries from %v on %s known to be committed: a majority of the replicas holds what is, and it was acknowledged",
		e.TabletID, e.Committed, e.From, are)
}

// Apply takes the entries out, durably, in one commit, after Backup has written them down. Where some of them are known to be
// committed it refuses with a *CommittedError, or, with force, takes the commit index back to the entry before them. Term and
// vote stay as they are: the replica never votes twice in a term.
func (r *Repair) Apply(c *Cut, force bool) error {
	invariant.Check(c.backup != "", "wal: a cut of tablet %s without a backup", c.TabletID)
	if c.Committed > 0 && !force {
		return &CommittedError{TabletID: c.TabletID, From: c.From, Committed: c.Committed}
	}
	var b Batch
	if c.Committed > 0 {
		h := c.log.HardState()
		h.Commit = new(uint64(c.Previous.Index))
		b.SetHardState(c.Number, h)
	}
	b.CutSuffix(c.Number, c.From.Index)
	return r.store.Commit(&b)
}

// MetaBackup is the value that tells a backup from a server's WAL: a line for people about where its entries come from.
const MetaBackup MetaKey = "backup_of"

// A backup's file grows in small steps, and is written in pieces of about this size.
const (
	backupGrowth = 64 << 10
	backupBytes  = 4 << 20
)

// Backup writes the entries of a cut to a new file at path, which must not exist, and returns once it is durable and has been
// read back. The file is a WAL with one group, of the same number, tablet and record, whose log begins after the entry before
// the cut: OpenReader and Dump read it like any other. A crash leaves nothing at path, or a whole file.
func (r *Repair) Backup(c *Cut, path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fs.ErrExist
		}
		return fmt.Errorf("backup %s: %w: name another file", path, err)
	}
	partial := path + ".partial"
	if err := os.Remove(partial); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("backup: remove what an earlier try left behind: %w", err)
	}
	err := r.writeBackup(c, partial)
	if err == nil {
		err = checkBackup(c, partial)
	}
	if err == nil {
		err = os.Rename(partial, path)
	}
	if err != nil {
		os.Remove(partial)
		os.Remove(partial + newSuffix)
		return fmt.Errorf("backup %s: %w", path, err)
	}
	if err := syncPath(filepath.Dir(path)); err != nil {
		return fmt.Errorf("backup %s: sync its folder: %w", path, err)
	}
	c.backup = path
	return nil
}

func (r *Repair) writeBackup(c *Cut, path string) (err error) {
	s, err := OpenBolt(Config{Path: path, CacheBytes: 1, growBytes: backupGrowth})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	h := c.log.HardState()
	if c.Committed == 0 {
		h.Commit = new(uint64(0)) // it lies before the backup's first entry
	}
	var b Batch
	b.CreateGroup(c.Number, c.TabletID, c.log.record, c.Previous)
	b.SetMeta(MetaBackup, fmt.Appendf(nil, "%s, entries %v to %v of tablet %s, cut at %s",
		r.store.path, c.From, c.To, c.TabletID, time.Now().UTC().Format(time.RFC3339)))
	for at := uint64(c.From.Index); at <= uint64(c.To.Index); {
		entries, err := c.log.Entries(at, uint64(c.To.Index)+1, backupBytes)
		if err != nil {
			return err
		}
		b.Append(c.Number, entries)
		if at += uint64(len(entries)); at > uint64(c.To.Index) {
			// The commit index comes last: a log must reach it at every commit.
			b.SetHardState(c.Number, h)
		}
		if err := s.Commit(&b); err != nil {
			return err
		}
		b.Reset()
	}
	return nil
}

// checkBackup reads a backup back and compares it with the log.
func checkBackup(c *Cut, path string) error {
	r, err := OpenReader(path)
	if err != nil {
		return err
	}
	defer r.Close()
	l := r.Log(c.Number)
	if l == nil || l.Start() != c.Previous || l.LastOpID() != c.To {
		return errors.New("read back, it doesn't hold the entries")
	}
	for at := uint64(c.From.Index); at <= uint64(c.To.Index); {
		want, err := c.log.Entries(at, uint64(c.To.Index)+1, backupBytes)
		if err != nil {
			return err
		}
		got, err := l.Entries(at, at+uint64(len(want)), math.MaxUint64)
		if err != nil {
			return err
		}
		for i, e := range want {
			if i >= len(got) || !proto.Equal(e, got[i]) {
				return fmt.Errorf("read back, entry %d isn't what was written", e.GetIndex())
			}
		}
		at += uint64(len(want))
	}
	return nil
}
