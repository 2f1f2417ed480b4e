package tablet

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestDurable shows that OnDurable tells after each flush how far the replicas got that moved since, and of no others, and
// that what it told is there after a crash.
func TestDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := testOptions(fs)
	told := make(chan map[ident.LocalNumber]ident.Index, 100)
	o.OnDurable = func(m map[ident.LocalNumber]ident.Index) { told <- m }
	s := openStore(t, o)
	a, b := newTestTablet(t, s, 1, kvSchema(t)), newTestTablet(t, s, 2, kvSchema(t))
	write(t, a, kv(schema.Insert, 1))
	write(t, a, kv(schema.Insert, 2))
	write(t, b, kv(schema.Insert, 1))
	require.NoError(t, s.Flush())
	require.Equal(t, map[ident.LocalNumber]ident.Index{1: 2, 2: 1}, <-told)
	write(t, b, kv(schema.Insert, 2))
	require.NoError(t, s.Flush())
	require.Equal(t, map[ident.LocalNumber]ident.Index{2: 2}, <-told)
	write(t, a, kv(schema.Insert, 3))

	crashed := openStore(t, testOptions(fs.CrashClone(vfs.CrashCloneCfg{})))
	for n, want := range map[ident.LocalNumber]ident.Index{1: 2, 2: 2} {
		tb, ok, err := crashed.Load(n)
		require.NoError(t, err)
		require.True(t, ok)
		i, _ := tb.Applied()
		require.Equal(t, want, i)
		require.Equal(t, 2, countRows(t, tb, 1000))
	}
	require.NoError(t, s.Close())
	require.Equal(t, map[ident.LocalNumber]ident.Index{1: 3}, <-told)
	require.Empty(t, told)
}

// TestCreateLoadDelete follows a replica through its life, and shows that a number holds one replica.
func TestCreateLoadDelete(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, testOptions(fs))
	_, ok, err := s.Load(5)
	require.NoError(t, err)
	require.False(t, ok)
	rec := replicaRecord(5, kvSchema(t))
	tb, err := s.Create(5, rec)
	require.NoError(t, err)
	require.EqualValues(t, 5, tb.Number())
	require.EqualValues(t, rec.GetTabletId(), tb.TabletID())
	require.EqualValues(t, rec.GetTableId(), tb.TableID())
	require.Equal(t, "t", tb.TableName())
	require.EqualValues(t, 1, tb.ReplicaID())
	require.Equal(t, rec, tb.Record())
	_, err = s.Create(5, rec)
	require.Equal(t, status.TabletAlreadyExists, status.CodeOf(err))
	_, err = s.Create(0, rec)
	require.Equal(t, status.InvalidArgument, status.CodeOf(err))
	again, ok, err := s.Load(5)
	require.NoError(t, err)
	require.True(t, ok)
	require.Same(t, tb, again)
	write(t, tb, kv(schema.Insert, 1))
	newTestTablet(t, s, 6, kvSchema(t))

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	s = openStore(t, testOptions(fs))
	_, err = s.Create(5, rec)
	require.Equal(t, status.TabletAlreadyExists, status.CodeOf(err))
	numbers, err := s.ListNumbers()
	require.NoError(t, err)
	require.Equal(t, []ident.LocalNumber{5, 6}, numbers)
	require.NoError(t, s.Delete(5), "it needn't be loaded")
	numbers, err = s.ListNumbers()
	require.NoError(t, err)
	require.Equal(t, []ident.LocalNumber{6}, numbers)
	_, ok, err = s.Load(5)
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, s.Delete(5))
}

// TestDeleteBesideBatch shows that a batch that was under way when its tablet was deleted brings nothing back.
func TestDeleteBesideBatch(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	b := s.NewBatch()
	defer b.Close()
	_, err := b.Apply(tb, Op{Index: 1, Timestamp: 10, Write: encodeRows(t, tb.Schema(), kv(schema.Insert, 1))})
	require.NoError(t, err)
	require.Positive(t, b.Size())
	require.NoError(t, s.Delete(1))
	require.NoError(t, b.Commit())
	numbers, err := s.ListNumbers()
	require.NoError(t, err)
	require.Empty(t, numbers)
}

// TestBadRecord shows that a replica isn't created from a record that makes no sense.
func TestBadRecord(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	rec := replicaRecord(1, kvSchema(t))
	rec.Schema = &nyalav1.Schema{}
	_, err := s.Create(1, rec)
	require.Equal(t, status.InvalidSchema, status.CodeOf(err))
	rec = replicaRecord(1, kvSchema(t))
	rec.PartitionSchema = &nyalav1.PartitionSchema{RangeColumnIds: []uint32{9}}
	_, err = s.Create(1, rec)
	require.Error(t, err)
	numbers, err := s.ListNumbers()
	require.NoError(t, err)
	require.Empty(t, numbers)
}

// TestDamage puts values into the store that no one wrote. Whoever meets one gets an error that says where; the tablet takes
// no more entries; other tablets go on.
func TestDamage(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	a, b := newTestTablet(t, s, 1, kvSchema(t)), newTestTablet(t, s, 2, kvSchema(t))
	write(t, a, kv(schema.Insert, 1))
	key := a.Schema().EncodeKey(nil, func(int) []byte { return []byte{2, 0, 0, 0} })
	for name, v := range map[string][]byte{
		"empty": {}, "format": {0x21}, "cells": {0x11, 0x14, 0x07}, "no base": {0x12, 0x11, 'x'}, "kind": {0x10},
	} {
		require.NoError(t, s.db.Set(appendRowKey(nil, 1, key, 20), v, pebble.NoSync))
		sc, err := a.NewScanner(ScanSpec{Columns: []int{0, 1}, Snapshot: 100})
		require.NoError(t, err)
		_, _, err = sc.Next(t.Context(), 0)
		if name == "no base" {
			// The one column wanted is there, so nobody looks further; the whole row does.
			require.NoError(t, err)
			continue
		}
		var damage *CorruptionError
		require.ErrorAs(t, err, &damage, name)
		require.ErrorContains(t, err, "1/row/80000002@")
		require.Equal(t, a.TabletID(), damage.Tablet)
	}
	batch := s.NewBatch()
	defer batch.Close()
	require.NoError(t, s.db.Set(appendRowKey(nil, 1, key, 20), []byte{0x99}, pebble.NoSync))
	require.NoError(t, s.Flush(), "the tablet doesn't know that there is something in memory")
	_, err := batch.Apply(a, Op{Index: 2, Timestamp: 30, Write: encodeRows(t, a.Schema(), kv(schema.Insert, 2))})
	var damage *CorruptionError
	require.ErrorAs(t, err, &damage)
	require.ErrorIs(t, err, errVersionFormat)
	_, err = batch.Apply(b, Op{Index: 1, Timestamp: 30, Write: encodeRows(t, a.Schema(), kv(schema.Insert, 2))})
	require.NoError(t, err)
	require.NoError(t, batch.Commit())
	require.Equal(t, 1, countRows(t, b, 100))
	require.Error(t, a.Err())
	require.NoError(t, b.Err())
	i, _ := a.Applied()
	require.EqualValues(t, 1, i)
}

// TestUpdateOfNothing shows that a row whose oldest version changes columns of nothing is damage, not half a row.
func TestUpdateOfNothing(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, testSchema(t))
	key := []byte("a\x00\x00\x80\x01")
	for _, below := range [][]byte{nil, {0x13}} {
		w := cellWriter{buf: appendVersionHeader(nil, someColumns)}
		w.add(2, []byte{1, 0, 0, 0}, false)
		require.NoError(t, s.db.Set(appendRowKey(nil, 1, key, 20), w.buf, pebble.NoSync))
		if below != nil {
			require.NoError(t, s.db.Set(appendRowKey(nil, 1, key, 10), below, pebble.NoSync))
		}
		sc, err := tb.NewScanner(ScanSpec{Columns: []int{2, 3}, Snapshot: 100})
		require.NoError(t, err)
		_, _, err = sc.Next(t.Context(), 0)
		require.ErrorIs(t, err, errNoBase)
	}
}

// TestLoadDamage shows that a replica with a damaged record isn't loaded, and that the error says which.
func TestLoadDamage(t *testing.T) {
	for name, key := range map[string][]byte{
		"state": appendRecordKey(nil, 1, kindState), "replica": appendRecordKey(nil, 1, kindReplica),
		"config": appendRecordKey(nil, 1, kindConfig), "schema": appendSchemaKey(nil, 1, 0),
		"client": appendClientKey(nil, 1, ClientID{1}), "request": appendRequestKey(nil, 1, ClientID{1}, 1),
	} {
		for _, v := range [][]byte{nil, {9}, {1, 0xff}} {
			fs := vfs.NewMem()
			s := openStore(t, testOptions(fs))
			newTestTablet(t, s, 1, kvSchema(t))
			require.NoError(t, s.db.Set(key, v, pebble.NoSync))
			require.NoError(t, s.Close())
			s = openStore(t, testOptions(fs))
			_, ok, err := s.Load(1)
			require.False(t, ok)
			require.ErrorContains(t, err, name+" record", "%s %x", name, v)
		}
	}
	// A request without its client can't have been written.
	fs := vfs.NewMem()
	s := openStore(t, testOptions(fs))
	newTestTablet(t, s, 1, kvSchema(t))
	v, err := appendRequest(nil, 7, nil)
	require.NoError(t, err)
	require.NoError(t, s.db.Set(appendRequestKey(nil, 1, ClientID{1}, 1), v, pebble.NoSync))
	require.NoError(t, s.Close())
	_, _, err = openStore(t, testOptions(fs)).Load(1)
	require.ErrorContains(t, err, "of which there is no record")
}

// TestPressure shows that the store says when flushes are behind, and stops saying so once they aren't.
func TestPressure(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.MaxMemtableBytes = 2 * o.MemtableBytes
	s := openStore(t, o)
	tb := newTestTablet(t, s, 1, kvSchema(t))
	require.False(t, s.Pressure().Refuse)
	s.watcher.since.Add(o.MaxMemtableBytes)
	p := s.Pressure()
	require.True(t, p.Refuse)
	require.Contains(t, p.Reason, "wait to be flushed")
	write(t, tb, kv(schema.Insert, 1))
	require.NoError(t, s.Flush())
	require.Eventually(t, func() bool { return !s.Pressure().Refuse }, 10*time.Second, time.Millisecond)
	s.watcher.pressure.Store(&Pressure{L0Sublevels: 25})
	require.Contains(t, s.Pressure().Reason, "compactions are behind")
}

// TestMetrics lints the store's metrics, but for the names that are Kudu's, sees some of them move, and that they go away.
func TestMetrics(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	o := testOptions(vfs.NewMem())
	o.Registerer = r
	s := openStore(t, o)
	tb := newTestTablet(t, s, 1, kvSchema(t))
	write(t, tb, kv(schema.Insert, 1), kv(schema.Insert, 1), kv(schema.Upsert, 2), kv(schema.Update, 2, str("")), kv(schema.Delete, 1))
	applyNext(t, tb, tracked(encodeRows(t, tb.Schema(), kv(schema.Upsert, 2)), 1, 1, 1))
	write(t, tb, kv(schema.InsertIgnore, 2), kv(schema.UpdateIgnore, 9, str("x")), kv(schema.DeleteIgnore, 8), kv(schema.DeleteIgnore, 9))
	scanAll(t, tb, ScanSpec{Columns: []int{0}}, 0)
	families, err := r.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"insertions_failed_dup_key": 1, "tablet_row_errors_total": 1, "rows_inserted": 1, "rows_upserted": 2, "rows_updated": 1,
		"insert_ignore_errors": 1, "update_ignore_errors": 1, "delete_ignore_errors": 2,
		"rows_deleted": 1, "scanner_rows_returned": 1, "scanner_rows_scanned": 1, "tablet_requests_remembered": 1,
		"tablet_clients_remembered": 1, "tablet_requests_total new": 1, "tablet_requests_total duplicate": 0,
		"tablet_requests_forgotten_total limit": 0,
	} {
		got, ok := values[name]
		require.True(t, ok, name)
		require.InDelta(t, want, got, 0, name)
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	for _, p := range problems {
		kudu := strings.HasPrefix(p.Metric, "rows_") || strings.HasPrefix(p.Metric, "scanner_rows_") || p.Metric == "insertions_failed_dup_key" ||
			strings.HasSuffix(p.Metric, "_ignore_errors")
		require.True(t, kudu, "%s: %s", p.Metric, p.Text)
	}
	_, err = Open(Options{Dir: "other", FS: vfs.NewMem(), Registerer: r})
	require.ErrorContains(t, err, "register a metric")
	require.NoError(t, s.Close())
	families, err = r.Gather()
	require.NoError(t, err)
	require.Empty(t, families)
}

// TestOptions shows that all faults come in one error.
func TestOptions(t *testing.T) {
	require.NoError(t, Options{Dir: "d"}.Validate())
	err := Options{MemtableBytes: 1, MaxRequests: -1, RememberClientsTTL: time.Second}.Validate()
	for _, want := range []string{"Dir is empty", "MemtableBytes is 1", "MaxRequests is -1", "RememberClientsTTL 1s is below"} {
		require.ErrorContains(t, err, want)
	}
	_, err = Open(Options{})
	require.ErrorContains(t, err, "Dir is empty")
	_, err = Open(Options{Dir: "/proc/nowhere"})
	require.ErrorContains(t, err, "make the folder /proc/nowhere")
}

// TestTwoStoresOnOneFolder shows that a folder takes one store at a time.
func TestTwoStoresOnOneFolder(t *testing.T) {
	dir := t.TempDir()
	openStore(t, Options{Dir: dir})
	_, err := Open(Options{Dir: dir})
	require.ErrorContains(t, err, "open "+dir)
}

// TestKeyFormatter shows keys as messages have them.
func TestKeyFormatter(t *testing.T) {
	require.Equal(t, "7/row/61@2023-11-14T22:13:20.000000Z", fmt.Sprintf("%v", keyFormatter(appendRowKey(nil, 7, []byte("a"), 0x60a24181e4000000))))
	require.Equal(t, "7/05/01000000000000000000000000000000", fmt.Sprintf("%v", keyFormatter(appendClientKey(nil, 7, ClientID{1}))))
	require.Equal(t, "ff", fmt.Sprintf("%v", keyFormatter{0xff}))
}

// TestFullDisk fails every new file for a while. Entries go on being applied, Pressure says to refuse writes once too much
// waits, the failures make few log lines, and when there is room again the rest is flushed.
func TestFullDisk(t *testing.T) {
	var full atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if full.Load() && op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			return syscall.ENOSPC
		}
		return nil
	}))
	var log bytes.Buffer
	o := testOptions(fs)
	o.MaxMemtableBytes = 2 * o.MemtableBytes
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	told := make(chan ident.Index, 100)
	o.OnDurable = func(m map[ident.LocalNumber]ident.Index) { told <- m[1] }
	s := openStore(t, o)
	tb := newTestTablet(t, s, 1, kvSchema(t))
	full.Store(true)
	for k := int64(0); !s.Pressure().Refuse; k++ {
		require.Empty(t, write(t, tb, kv(schema.Insert, k, str(strings.Repeat("x", 4000)))).RowErrors)
		require.Less(t, k, int64(1000))
	}
	rows := countRows(t, tb, hybridtime.Max)
	full.Store(false)
	require.NoError(t, s.Flush())
	require.Eventually(t, func() bool { return !s.Pressure().Refuse }, 10*time.Second, time.Millisecond)
	require.Equal(t, rows, countRows(t, tb, hybridtime.Max))
	require.NoError(t, s.Close())
	close(told)
	last := ident.Index(0)
	for i := range told {
		last = i
	}
	applied, _ := tb.Applied()
	require.Equal(t, applied, last)
	require.LessOrEqual(t, strings.Count(log.String(), "background work failed"), 2)
}

// TestClosed shows that a read that comes after Close gets an error, not a panic.
func TestClosed(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	w := tracked(encodeRows(t, tb.Schema(), kv(schema.Update, 1, str("a"))), 1, 1, 1)
	require.Len(t, applyNext(t, tb, w).RowErrors, 1)
	sc, err := tb.NewScanner(ScanSpec{Snapshot: 100})
	require.NoError(t, err)
	require.NoError(t, s.Close())
	_, _, err = sc.Next(t.Context(), 0)
	require.Equal(t, status.ServiceUnavailable, status.CodeOf(err))
	_, _, err = s.Load(2)
	require.Equal(t, status.ServiceUnavailable, status.CodeOf(err))
	_, err = s.ListNumbers()
	require.Equal(t, status.ServiceUnavailable, status.CodeOf(err))
	_, state := tb.Lookup(w.GetRequestId())
	require.Equal(t, LookupNew, state)
}
