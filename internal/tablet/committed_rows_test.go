package tablet

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
)

// TestAskInGaps inserts and deletes runs of keys, dense and sparse, in entries of more keys than a probe needs, several to a batch
// and with flushes between, in two tablets that lie side by side; each row's outcome is compared with that of a set. So keys are
// answered by gaps that end at a row, at a deleted row, and at the end of the tablet.
func TestAskInGaps(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, err := Open(testOptions(vfs.NewMem()))
		if err != nil {
			rt.Fatal(err)
		}
		defer s.Close()
		tablets := []*Tablet{newTestTablet(t, s, 1, kvSchema(t)), newTestTablet(t, s, 2, kvSchema(t))}
		present := []map[int64]bool{{}, {}}
		index := ident.Index(0)
		for range rapid.IntRange(1, 4).Draw(rt, "batches") {
			b := s.NewBatch()
			for range rapid.IntRange(1, 3).Draw(rt, "entries") {
				index++
				for i, tb := range tablets {
					op := rapid.SampledFrom([]schema.OpType{schema.Insert, schema.Insert, schema.Delete}).Draw(rt, "op")
					first, step := rapid.Int64Range(-40, 40).Draw(rt, "first"), rapid.Int64Range(1, 3).Draw(rt, "step")
					var rows []rowSpec
					want := map[uint32]bool{}
					for n := range rapid.IntRange(1, 3*probeAsks).Draw(rt, "rows") {
						key := first + int64(n)*step
						if op == schema.Insert {
							rows = append(rows, kv(op, key, str("v")))
						} else {
							rows = append(rows, kv(op, key))
						}
						if present[i][key] == (op == schema.Insert) {
							want[uint32(n)] = true
						}
						present[i][key] = op == schema.Insert
					}
					res, err := b.Apply(tb, Op{Index: index, Timestamp: hybridtime.Timestamp(index), Write: encodeRows(t, tb.Schema(), rows...)})
					if err != nil || res.Err != nil {
						rt.Fatal(err, res.Err)
					}
					if len(res.RowErrors) != len(want) {
						rt.Fatalf("entry %d: rows %v failed, want %v", index, res.RowErrors, want)
					}
					for _, e := range res.RowErrors {
						if !want[e.GetRowIndex()] {
							rt.Fatalf("entry %d: row %d failed: %v", index, e.GetRowIndex(), e)
						}
					}
				}
			}
			if err := b.Commit(); err != nil {
				rt.Fatal(err)
			}
			if rapid.Bool().Draw(rt, "flush") {
				if err := s.Flush(); err != nil {
					rt.Fatal(err)
				}
			}
		}
	})
}

// TestOverlayReset takes and frees slots of an overlay, few and many at a time, with hashes that crowd together: after each reset
// no slot is taken.
func TestOverlayReset(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		o := &overlay{slots: make([]int32, 1<<rapid.IntRange(6, 9).Draw(rt, "slots"))}
		for range 4 {
			for range rapid.IntRange(0, len(o.slots)/2).Draw(rt, "entries") {
				h := rapid.Uint64Range(0, uint64(len(o.slots))/4).Draw(rt, "hash") * uint64(len(o.slots)-1)
				o.entries = append(o.entries, overlayEntry{hash: h})
				i := h & uint64(len(o.slots)-1)
				for o.slots[i] != 0 {
					i = (i + 1) & uint64(len(o.slots)-1)
				}
				o.slots[i] = int32(len(o.entries))
			}
			o.reset()
			for i, n := range o.slots {
				if n != 0 {
					rt.Fatalf("slot %d of %d is still taken", i, len(o.slots))
				}
			}
		}
	})
}
