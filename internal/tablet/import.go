package tablet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// Import makes a replica's state of an Export's pairs. Pairs come in key order, so they are written to sorted files as they
// come, which the database takes over in one step when all are there: no memtable and no compaction sees them, and the other
// replicas' writes aren't held up by them. Until Finish the store has nothing of the replica; what a crash leaves are files
// that the next Open removes. An Import belongs to one goroutine, keeps the store open, and ends with Finish or Abort.
type Import struct {
	s      *Store
	number ident.LocalNumber
	tablet string
	files  []string
	w      *sstable.Writer // of the last file; nil: none is open
	size   int             // of the pairs in it
	last   []byte          // the key written last
	next   []byte
	ended  bool
}

// importFileBytes is how much is written to one file, before it is compressed: about what Pebble's own compactions make of
// the lowest level.
const importFileBytes = 64 << 20

// importSyncBytes is how much may be written before it is given to the disk, so that a file's end doesn't hold up the log's.
const importSyncBytes = 1 << 20

// lowestLevel is the one for whose blocks and filters files of an import are made.
const lowestLevel = 6

// ImportState is what goes with a copy's pairs: whose replica it is, and the entry after which its rows are.
type ImportState struct {
	Record    *nyalav1.ReplicaRecord
	Config    *nyalav1.RaftConfig
	Applied   ident.Index
	Timestamp hybridtime.Timestamp
}

// importDir is where imports write. Pebble takes the files from there into its own folder.
func importDir(o *Options) string { return o.FS.PathJoin(o.Dir, "imports") }

// clearImports removes what a crash has left of imports.
func clearImports(o *Options) error {
	dir := importDir(o)
	if err := o.FS.RemoveAll(dir); err != nil {
		return fmt.Errorf("tablet store: remove half-made copies in %s: %w", dir, err)
	}
	if err := o.FS.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("tablet store: make the folder %s: %w", dir, err)
	}
	return nil
}

// NewImport begins to fill a replica number of which the store has nothing. The caller sees to it that it is nobody else's.
func (s *Store) NewImport(n ident.LocalNumber, st ImportState) (*Import, error) {
	if n == 0 {
		return nil, status.New(status.InvalidArgument, "tablet %s: the replica's local number is 0", st.Record.GetTabletId())
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	i := &Import{s: s, number: n, tablet: st.Record.GetTabletId()}
	if err := i.begin(st); err != nil {
		return nil, errors.Join(i.wrap(err), i.Abort())
	}
	return i, nil
}

func (i *Import) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("tablet %s: import: %w", i.tablet, err)
}

// begin writes the records that aren't among the pairs: they stand before them.
func (i *Import) begin(st ImportState) error {
	if err := i.set(appendRecordKey(nil, i.number, kindState), appendState(nil, stateRecord{applied: st.Applied, timestamp: st.Timestamp})); err != nil {
		return err
	}
	for _, r := range []struct {
		kind byte
		m    proto.Message
	}{{kindReplica, st.Record}, {kindConfig, st.Config}} {
		v, err := appendMessage(nil, r.m)
		if err != nil {
			return err
		}
		if err := i.set(appendRecordKey(nil, i.number, r.kind), v); err != nil {
			return err
		}
	}
	return nil
}

// Add takes the next pairs, as Export.Next made them, and says how many they are. What can't be a part of an export is
// refused: the import is then good for nothing but Abort.
func (i *Import) Add(pairs []byte) (n int, err error) {
	for ; len(pairs) > 0; n++ {
		var key, value []byte
		if key, value, pairs, err = cutPair(pairs); err != nil {
			return n, i.wrap(status.Wrap(status.Corruption, err, "pair %d", n))
		}
		i.next = storeKey(i.next[:0], i.number, key)
		if err := checkPair(i.next, value); err != nil {
			return n, i.wrap(status.Wrap(status.Corruption, err, "pair %d", n))
		}
		if compareKeys(i.next, i.last) <= 0 {
			return n, i.wrap(status.New(status.Corruption, "pair %d: its key doesn't lie above the one before", n))
		}
		if err := i.set(i.next, value); err != nil {
			return n, i.wrap(err)
		}
	}
	return n, nil
}

// set writes one pair to the file at hand.
func (i *Import) set(key, value []byte) error {
	if i.w != nil && i.size >= importFileBytes {
		if err := i.endFile(); err != nil {
			return err
		}
	}
	if i.w == nil {
		if err := i.beginFile(); err != nil {
			return err
		}
	}
	i.last = append(i.last[:0], key...)
	i.size += len(key) + len(value)
	return i.w.Set(key, value)
}

func (i *Import) beginFile() error {
	dir := i.s.opts.FS
	path := dir.PathJoin(importDir(&i.s.opts), fmt.Sprintf("%d-%d.sst", i.number, len(i.files)))
	f, err := dir.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	i.files, i.size = append(i.files, path), 0
	f = vfs.NewSyncingFile(f, vfs.SyncingFileOptions{BytesPerSync: importSyncBytes})
	i.w = sstable.NewWriter(objstorageprovider.NewFileWritable(f), i.s.pebble.MakeWriterOptions(lowestLevel, i.s.db.TableFormat()))
	return nil
}

func (i *Import) endFile() error {
	w := i.w
	i.w = nil
	return w.Close()
}

// Finish makes the replica, durably, and opens it. Whether it exists is still the log's to say: a store holds it until
// Delete, or until a start finds that the log doesn't know it.
//
// The database takes all files over in one edit of its manifest, which is durable on return unless a memtable holds keys
// between theirs: then they would stand in line behind it. So there is a flush before, and one after that makes sure.
func (i *Import) Finish(ctx context.Context) (*Tablet, error) {
	t, err := i.finish(ctx)
	return t, errors.Join(i.wrap(err), i.Abort())
}

func (i *Import) finish(ctx context.Context) (*Tablet, error) {
	if err := i.endFile(); err != nil {
		return nil, err
	}
	if err := i.s.Flush(); err != nil {
		return nil, err
	}
	if err := i.s.db.Ingest(ctx, i.files); err != nil {
		return nil, fmt.Errorf("take over its files: %w", err)
	}
	t, err := i.open()
	if err != nil {
		return nil, errors.Join(err, i.s.Delete(i.number))
	}
	return t, nil
}

func (i *Import) open() (*Tablet, error) {
	if err := i.s.Flush(); err != nil {
		return nil, err
	}
	t, found, err := i.s.Load(i.number)
	if err == nil && !found {
		err = status.New(status.Corruption, "the store took its files and has nothing of it")
	}
	return t, err
}

// Abort removes what Finish hasn't given to the store. A second one does nothing, nor does one after Finish.
func (i *Import) Abort() error {
	if i.ended {
		return nil
	}
	i.ended = true
	defer i.s.leave()
	if i.w != nil {
		_ = i.endFile() // it goes anyhow
	}
	var errs []error
	for _, path := range i.files {
		// What the store took over it has removed from here.
		if err := i.s.opts.FS.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
