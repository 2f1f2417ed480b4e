package tablet

import (
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
)

// TestReplicasAgree applies one random log on two stores, whose bounds and TTLs for exactly-once are small so that answers
// and clients are forgotten all the time: on one entry by entry, on the other in batches, with flushes, restarts and crashes
// in between. Every result, what is remembered of every client, and the rows are the same (I5).
func TestReplicasAgree(t *testing.T) {
	sc := kvSchema(t)
	rapid.Check(t, func(t *rapid.T) {
		o := testOptions(nil)
		o.RememberResponsesTTL, o.RememberClientsTTL = 20*time.Microsecond, 50*time.Microsecond
		o.MaxRequests, o.MaxClients = rapid.IntRange(1, 8).Draw(t, "requests"), rapid.IntRange(1, 4).Draw(t, "clients")
		plain := startReplica(t, o, vfs.NewMem(), sc)
		rough := startReplica(t, o, vfs.NewCrashableMem(), sc)
		defer func() { plain.close(t); rough.close(t) }()

		var log []Op
		var want []string
		now := int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "entries") {
			now += rapid.OneOf(rapid.Int64Range(1, 10), rapid.Just(int64(100))).Draw(t, "pause")
			w := drawKVWrite(t, sc)
			w.RequestId = &nyalav1.StoredRequestId{
				ClientId: append(make([]byte, 15), byte(rapid.IntRange(0, 4).Draw(t, "client"))),
				SeqNo:    rapid.Uint64Range(0, 9).Draw(t, "seq"), FirstIncompleteSeqNo: rapid.Uint64Range(0, 5).Draw(t, "fi"),
			}
			op := Op{Index: ident.Index(len(log) + 1), Timestamp: hybridtime.FromMicros(now, 0), Write: w}
			log, want = append(log, op), append(want, plain.apply(t, []Op{op})[0])
			switch rapid.IntRange(0, 7).Draw(t, "then") {
			case 0:
				rough.flush(t)
			case 1:
				rough.restart(t)
			case 2:
				rough.crash(t, sc)
			case 3, 4:
				rough.catchUp(t, log, want)
			}
		}
		rough.catchUp(t, log, want)
		if got, want := dumpTable(rough.tablet.requests), dumpTable(plain.tablet.requests); !slices.Equal(got, want) {
			t.Fatalf("remembered:\n%v\nwant:\n%v", got, want)
		}
		n1, sum1, err1 := plain.tablet.Checksum(t.Context(), hybridtime.Max)
		n2, sum2, err2 := rough.tablet.Checksum(t.Context(), hybridtime.Max)
		if err1 != nil || err2 != nil || n1 != n2 || sum1 != sum2 {
			t.Fatalf("rows: %d, %x, %v and %d, %x, %v", n1, sum1, err1, n2, sum2, err2)
		}
	})
}

func drawKVWrite(t *rapid.T, sc *schema.Schema) *nyalav1.WriteOp {
	e := schema.NewOpsEncoder(sc)
	for range rapid.IntRange(1, 3).Draw(t, "rows") {
		values := []schema.Value{num(int64(rapid.IntRange(0, 2).Draw(t, "k"))), str("v")}
		set := schema.NewBitmap(2)
		set.Set(0)
		typ := rapid.SampledFrom([]schema.OpType{schema.Insert, schema.Update, schema.Delete}).Draw(t, "type")
		if typ == schema.Update {
			set.Set(1)
		}
		if err := e.Append(typ, values, set); err != nil {
			t.Fatal(err)
		}
	}
	rows, indirect := e.Bytes()
	return &nyalav1.WriteOp{RowOperations: &nyalav1.RowOperations{Rows: rows, IndirectData: indirect}}
}

// testReplica is one store with one tablet that can be crashed.
type testReplica struct {
	opts   Options
	fs     *vfs.MemFS
	store  *Store
	tablet *Tablet
}

func startReplica(t *rapid.T, o Options, fs *vfs.MemFS, sc *schema.Schema) *testReplica {
	r := &testReplica{opts: o, fs: fs}
	r.open(t)
	var err error
	if r.tablet, err = r.store.Create(1, replicaRecord(1, sc)); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *testReplica) open(t *rapid.T) {
	r.opts.FS = r.fs
	var err error
	if r.store, err = Open(r.opts); err != nil {
		t.Fatal(err)
	}
	if r.tablet, _, err = r.store.Load(1); err != nil {
		t.Fatal(err)
	}
}

func (r *testReplica) close(t *rapid.T) {
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
}

func (r *testReplica) flush(t *rapid.T) {
	if err := r.store.Flush(); err != nil {
		t.Fatal(err)
	}
}

func (r *testReplica) restart(t *rapid.T) {
	r.close(t)
	r.open(t)
}

func (r *testReplica) crash(t *rapid.T, sc *schema.Schema) {
	left := r.fs.CrashClone(vfs.CrashCloneCfg{})
	r.close(t)
	r.fs = left
	r.open(t)
	if r.tablet == nil {
		var err error
		if r.tablet, err = r.store.Create(1, replicaRecord(1, sc)); err != nil {
			t.Fatal(err)
		}
	}
}

// apply applies entries in one batch and returns their results.
func (r *testReplica) apply(t *rapid.T, ops []Op) []string {
	b := r.store.NewBatch()
	defer b.Close()
	var out []string
	for _, op := range ops {
		res, err := b.Apply(r.tablet, op)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, resultText(res))
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	return out
}

// catchUp applies what is missing of the log, in batches, and compares the results.
func (r *testReplica) catchUp(t *rapid.T, log []Op, want []string) {
	for {
		applied, _ := r.tablet.Applied()
		left := log[applied:]
		if len(left) == 0 {
			return
		}
		n := rapid.IntRange(1, len(left)).Draw(t, "at once")
		got := r.apply(t, left[:n])
		if w := want[applied : int(applied)+n]; !slices.Equal(got, w) {
			t.Fatalf("entries from %d on: %v, want %v", applied+1, got, w)
		}
	}
}
