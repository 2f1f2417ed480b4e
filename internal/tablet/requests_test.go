package tablet

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/schema"
)

func tracked(w *nyalav1.WriteOp, client byte, seq, firstIncomplete uint64) *nyalav1.WriteOp {
	w = proto.CloneOf(w)
	w.RequestId = &nyalav1.StoredRequestId{ClientId: make([]byte, 16), SeqNo: seq, FirstIncompleteSeqNo: firstIncomplete}
	w.RequestId.ClientId[0] = client
	return w
}

// TestExactlyOnce sends requests again: in the same batch, in another, after a restart and after a crash. Each time the first
// answer comes back, with its row errors and its timestamp, and no row changes.
func TestExactlyOnce(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, testOptions(fs))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	ins := encodeRows(t, tb.Schema(), kv(schema.Insert, 1, str("a")), kv(schema.Insert, 1, str("b")))
	_, state := tb.Lookup(tracked(ins, 1, 4, 4).GetRequestId())
	require.Equal(t, LookupNew, state)

	b := s.NewBatch()
	defer b.Close()
	first, err := b.Apply(tb, Op{Index: 1, Timestamp: 10, Write: tracked(ins, 1, 4, 4)})
	require.NoError(t, err)
	require.Equal(t, []uint32{1}, rowIndexes(first))
	same := func(res Result) {
		t.Helper()
		require.True(t, res.Duplicate)
		require.EqualValues(t, 10, res.Timestamp)
		require.Equal(t, []uint32{1}, rowIndexes(res))
		require.Equal(t, "key already present", res.RowErrors[0].GetMessage())
	}
	_, state = tb.Lookup(tracked(ins, 1, 4, 4).GetRequestId())
	require.Equal(t, LookupNew, state, "it isn't visible yet")
	again, err := b.Apply(tb, Op{Index: 2, Timestamp: 20, Write: tracked(ins, 1, 4, 4)})
	require.NoError(t, err)
	same(again)
	require.NoError(t, b.Commit())
	res, state := tb.Lookup(tracked(ins, 1, 4, 4).GetRequestId())
	require.Equal(t, LookupDone, state)
	same(res)
	same(apply(t, tb, Op{Index: 3, Timestamp: 30, Write: tracked(ins, 1, 4, 4)}))

	require.NoError(t, s.Close())
	s = openStore(t, testOptions(fs))
	tb, ok, err := s.Load(1)
	require.NoError(t, err)
	require.True(t, ok)
	res, state = tb.Lookup(tracked(ins, 1, 4, 4).GetRequestId())
	require.Equal(t, LookupDone, state)
	same(res)
	same(apply(t, tb, Op{Index: 4, Timestamp: 40, Write: tracked(ins, 1, 4, 4)}))

	// 3 is below the first-incomplete number that the client began with; 4 goes below it with the next request.
	del := encodeRows(t, tb.Schema(), kv(schema.Delete, 1))
	require.True(t, apply(t, tb, Op{Index: 5, Timestamp: 50, Write: tracked(del, 1, 3, 3)}).Stale)
	require.Equal(t, []uint32{0, 1}, rowIndexes(apply(t, tb, Op{Index: 6, Timestamp: 60, Write: tracked(ins, 1, 6, 5)})))
	require.True(t, apply(t, tb, Op{Index: 7, Timestamp: 70, Write: tracked(del, 1, 4, 4)}).Stale)
	_, state = tb.Lookup(tracked(ins, 1, 4, 4).GetRequestId())
	require.Equal(t, LookupStale, state)
	// 5 comes late, after 6, and is executed.
	res = apply(t, tb, Op{Index: 8, Timestamp: 80, Write: tracked(del, 1, 5, 5)})
	require.False(t, res.Duplicate || res.Stale)
	require.Empty(t, scanAll(t, tb, ScanSpec{Columns: []int{0}}, 0))
	// A first-incomplete number above the request's own (a client with nothing outstanding) takes nothing with it but the past.
	require.False(t, apply(t, tb, Op{Index: 9, Timestamp: 90, Write: tracked(ins, 1, 7, ^uint64(0))}).Stale)
	require.True(t, apply(t, tb, Op{Index: 10, Timestamp: 100, Write: tracked(ins, 1, 7, ^uint64(0))}).Duplicate)
}

// TestForgetting shows the TTLs, which run on the timestamps of operations, and that what is forgotten is stale, until its
// client is forgotten too.
func TestForgetting(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.RememberResponsesTTL, o.RememberClientsTTL = 10*time.Second, time.Minute
	s := openStore(t, o)
	tb := newTestTablet(t, s, 1, kvSchema(t))
	ups := encodeRows(t, tb.Schema(), kv(schema.Upsert, 1, str("a")))
	at := func(sec int64) hybridtime.Timestamp { return hybridtime.FromMicros(sec*1_000_000, 0) }
	apply(t, tb, Op{Index: 1, Timestamp: at(100), Write: tracked(ups, 1, 1, 0)})
	require.True(t, apply(t, tb, Op{Index: 2, Timestamp: at(110), Write: tracked(ups, 1, 1, 0)}).Duplicate, "not older than the TTL yet")
	require.True(t, apply(t, tb, Op{Index: 3, Timestamp: at(111), Write: tracked(ups, 1, 1, 0)}).Stale)
	require.False(t, apply(t, tb, Op{Index: 4, Timestamp: at(112), Write: tracked(ups, 1, 2, 0)}).Stale)
	requests, clients := s.remembered()
	require.Equal(t, 1, requests)
	require.Equal(t, 1, clients)
	apply(t, tb, Op{Index: 5, Timestamp: at(173), Write: ups})
	requests, clients = s.remembered()
	require.Zero(t, requests)
	require.Zero(t, clients)
	require.False(t, apply(t, tb, Op{Index: 6, Timestamp: at(174), Write: tracked(ups, 1, 1, 0)}).Stale, "a new client, as far as is known")
}

// TestForgettingIsInTheLog shows that the TTLs that an operation names count, whatever those of the server: two servers with
// other flags forget alike.
func TestForgettingIsInTheLog(t *testing.T) {
	s := openStore(t, testOptions(vfs.NewMem()))
	tb := newTestTablet(t, s, 1, kvSchema(t))
	ups := encodeRows(t, tb.Schema(), kv(schema.Upsert, 1, str("a")))
	at := func(sec int64) hybridtime.Timestamp { return hybridtime.FromMicros(sec*1_000_000, 0) }
	apply(t, tb, Op{Index: 1, Timestamp: at(100), Write: tracked(ups, 1, 1, 0)})
	short := proto.CloneOf(ups)
	short.RememberResponsesUsec = uint64(time.Second.Microseconds())
	apply(t, tb, Op{Index: 2, Timestamp: at(102), Write: short})
	require.True(t, apply(t, tb, Op{Index: 3, Timestamp: at(103), Write: tracked(ups, 1, 1, 0)}).Stale)
}

// listSink applies a request table's changes to maps, as the store would.
type listSink struct {
	clients  map[ClientID]clientRecord
	requests map[string]storedRequest
	removed  int
}

func (l *listSink) putClient(id ClientID, c clientRecord) { l.clients[id] = c }
func (l *listSink) deleteClient(id ClientID)              { delete(l.clients, id) }
func (l *listSink) deleteRequest(id ClientID, seq uint64, _ forgetReason) {
	delete(l.requests, fmt.Sprint(id, seq))
	l.removed++
}

// TestRequestTableRandom drives a request table with random requests of a few clients, small bounds and short TTLs. At each
// step it is compared with a table restored from what the sink holds, and:
//
//   - a number that was executed is not executed again while its client is remembered (I8),
//   - a number at or above every first-incomplete number and not forgotten by TTL or bound gets its first answer,
//   - one operation removes a bounded number of records, and the bounds hold but for what that leaves.
func TestRequestTableRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := requestLimits{
			responsesTTL: time.Duration(rapid.IntRange(1, 30).Draw(t, "rttl")) * time.Microsecond,
			clientsTTL:   40 * time.Microsecond,
			maxRecords:   rapid.IntRange(1, 12).Draw(t, "maxRecords"),
			maxClients:   rapid.IntRange(1, 4).Draw(t, "maxClients"),
		}
		sink := &listSink{clients: map[ClientID]clientRecord{}, requests: map[string]storedRequest{}}
		table := newRequestTable(limits)
		executed := map[string]bool{} // since the client became known
		now := int64(0)
		for range rapid.IntRange(1, 80).Draw(t, "ops") {
			now += rapid.Int64Range(1, 12).Draw(t, "pause")
			ts := hybridtime.FromMicros(now, 0)
			id := ClientID{byte(rapid.IntRange(0, 5).Draw(t, "client"))}
			seq := rapid.Uint64Range(0, 12).Draw(t, "seq")
			fi := rapid.Uint64Range(0, 13).Draw(t, "firstIncomplete")
			sink.removed = 0
			table.expire(ts, table.limits, sink)
			for k := range executed {
				if _, known := sink.clients[ClientID{k[0]}]; !known {
					delete(executed, k)
				}
			}
			key := string(id[:1]) + fmt.Sprint(seq)
			v, r := table.begin(id, seq, fi, ts, sink)
			switch v {
			case verdictNew:
				if executed[key] {
					t.Fatalf("client %d's request %d is executed twice", id[0], seq)
				}
				executed[key] = true
				table.remember(id, seq, ts, false, sink)
				sink.requests[fmt.Sprint(id, seq)] = storedRequest{id: id, seq: seq, timestamp: ts}
			case verdictDone:
				if r.seq != seq || !executed[key] {
					t.Fatalf("request %d got the answer of %d", seq, r.seq)
				}
			case verdictStale:
			}
			if sink.removed > 4*forgetPerOp {
				t.Fatalf("%d records were removed at once", sink.removed)
			}
			if len(table.clients) > limits.maxClients || table.records > limits.maxRecords {
				t.Fatalf("%d clients, %d records are over the bounds", len(table.clients), table.records)
			}
			restored := newRequestTable(limits)
			var stored []storedRequest
			for _, r := range sink.requests {
				stored = append(stored, r)
			}
			restored.restore(sink.clients, stored)
			if got, want := dumpTable(restored), dumpTable(table); !slices.Equal(got, want) {
				t.Fatalf("restored:\n%v\nwant:\n%v", got, want)
			}
			if rapid.Bool().Draw(t, "restart") {
				table = restored
			}
		}
	})
}

// dumpTable lists all that decides, in the orders that decide.
func dumpTable(rt *requestTable) []string {
	out := []string{fmt.Sprint(rt.records)}
	for r := rt.byAge.first; r != nil; r = r.next {
		out = append(out, fmt.Sprint("request ", r.client.id[0], r.seq, r.timestamp))
	}
	for c := rt.bySilence.first; c != nil; c = c.next {
		out = append(out, fmt.Sprint("client ", c.id[0], c.clientRecord, len(c.requests)))
	}
	return out
}

// TestForgettingIsBounded shows that after a long pause one operation removes a bounded number of the many old answers, that
// the others go with later ones, and that none of them is executed again meanwhile.
func TestForgettingIsBounded(t *testing.T) {
	sink := &listSink{clients: map[ClientID]clientRecord{}, requests: map[string]storedRequest{}}
	table := newRequestTable(requestLimits{responsesTTL: time.Second, clientsTTL: time.Hour, maxRecords: 1000, maxClients: 10})
	id := ClientID{1}
	for seq := range uint64(500) {
		ts := hybridtime.Timestamp(seq + 1)
		table.begin(id, seq, 0, ts, sink)
		table.remember(id, seq, ts, false, sink)
	}
	later := hybridtime.FromMicros(10_000_000, 0)
	ops := 0
	for table.records > 0 {
		sink.removed = 0
		table.expire(later, table.limits, sink)
		require.LessOrEqual(t, sink.removed, forgetPerOp)
		for _, seq := range []uint64{0, 250, 499} {
			v, _ := table.find(id, seq)
			require.NotEqual(t, verdictNew, v)
		}
		ops++
	}
	require.Equal(t, (500+forgetPerOp-1)/forgetPerOp, ops)
}
