package consensus

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// beatOf is the heartbeat of tablet n, from replica 1 to replica 2 on server b.
func beatOf(n int) OutgoingHeartbeat {
	h := OutgoingHeartbeat{To: "b", Address: "b:1", Heartbeat: Heartbeat{From: 1, To: 2, Term: 3, Commit: ident.Index(100_000 + n), Held: ident.Index(99_998 + n)}}
	binary.BigEndian.PutUint32(h.Tablet[:], uint32(n))
	return h
}

func beatsOf(from, to int) (hs []OutgoingHeartbeat) {
	for n := from; n < to; n++ {
		hs = append(hs, beatOf(n))
	}
	return hs
}

// overWire is a batch as the other side gets it.
func overWire(t testing.TB, b HeartbeatBatch) *nyalav1.Heartbeats {
	t.Helper()
	raw, err := proto.Marshal(b.Message())
	if err != nil {
		t.Fatal(err)
	}
	m := new(nyalav1.GroupMessage)
	if err := proto.Unmarshal(raw, m); err != nil {
		t.Fatal(err)
	}
	return m.GetHeartbeats()
}

// plain is what of a heartbeat has to arrive, whatever it went in.
func plain(hs []OutgoingHeartbeat) (out []Heartbeat) {
	for _, h := range hs {
		out = append(out, h.Heartbeat)
	}
	return out
}

func unsent(hs []Heartbeat) []Heartbeat {
	for i := range hs {
		hs[i].Sent = 0
	}
	return hs
}

func newTestBatcher(epoch uint64) *HeartbeatBatcher {
	return NewHeartbeatBatcher(BatcherConfig{Size: 30, Window: 100 * time.Millisecond, Epoch: epoch})
}

// TestBatchesFill shows when batches leave: full ones at once, the rest when the first in them has waited for the window; and
// that everything that went in comes out, once.
func TestBatchesFill(t *testing.T) {
	a, b := newTestBatcher(1), newTestBatcher(2)
	in := beatsOf(0, 67)
	full := a.Add(time.Second, in)
	if len(full) != 2 {
		t.Fatalf("%d batches are full", len(full))
	}
	if due := a.Flush(time.Second + 99*time.Millisecond); len(due) != 0 {
		t.Fatal("a batch leaves before its time")
	}
	if at, ok := a.Due(); !ok || at != 1100*time.Millisecond {
		t.Fatalf("due at %s, %v", at, ok)
	}
	due := a.Flush(1100 * time.Millisecond)
	if len(due) != 1 || due[0].To != "b" || due[0].Address != "b:1" {
		t.Fatalf("%+v", due)
	}
	if _, ok := a.Due(); ok {
		t.Fatal("something still waits")
	}
	var out []Heartbeat
	for _, batch := range append(full, due...) {
		hs, _, err := b.Receive(0, "a", overWire(t, batch))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, unsent(hs)...)
	}
	if !slices.Equal(out, plain(in)) {
		t.Fatalf("got %+v", out)
	}
}

// TestBatchesForget shows that a receiver that has forgotten what numbers mean asks, is told, and reads nothing wrongly in
// between: after its restart, after the sender's, and after a batch was lost.
func TestBatchesForget(t *testing.T) {
	for name, disturb := range map[string]func(a, b **HeartbeatBatcher, lost HeartbeatBatch){
		"receiver restarts": func(_, b **HeartbeatBatcher, _ HeartbeatBatch) { *b = newTestBatcher(3) },
		"sender restarts":   func(a, _ **HeartbeatBatcher, _ HeartbeatBatch) { *a = newTestBatcher(4) },
		"nothing":           func(_, _ **HeartbeatBatcher, _ HeartbeatBatch) {},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newTestBatcher(1), newTestBatcher(2)
			for round := range 6 {
				in := beatsOf(0, 30)
				if round == 0 {
					slices.Reverse(in) // so that numbers of another epoch mean others
				}
				batch := a.Add(0, in)[0]
				switch round {
				case 1: // lost in silence
					continue
				case 2:
					disturb(&a, &b, batch)
					batch = a.Add(0, in)[0]
				}
				hs, _, err := b.Receive(0, "a", overWire(t, batch))
				if err != nil {
					t.Fatal(err)
				}
				for _, h := range unsent(hs) {
					if !slices.Contains(plain(in), h) {
						t.Fatalf("round %d: %+v was never sent", round, h)
					}
				}
				if round != 2 && len(hs) != 30 || round == 2 && name != "receiver restarts" && len(hs) != 30 {
					t.Fatalf("round %d: %d of 30 were read", round, len(hs))
				}
				for _, back := range b.Flush(time.Second) {
					if _, _, err := a.Receive(0, "b", overWire(t, back)); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestLostBatchIsExplainedAgain shows that a batch which the transport reports as lost costs no round of asking.
func TestLostBatchIsExplainedAgain(t *testing.T) {
	a, b := newTestBatcher(1), newTestBatcher(2)
	lost := a.Add(0, beatsOf(0, 30))[0]
	a.Lost("b", lost.Heartbeats)
	hs, _, err := b.Receive(0, "a", overWire(t, a.Add(0, beatsOf(0, 30))[0]))
	if err != nil || len(hs) != 30 {
		t.Fatalf("%d were read, %v", len(hs), err)
	}
}

// TestAnswersRide shows that answers leave with heartbeats or after the window, and that the round trip counts the way there
// and back and not the wait.
func TestAnswersRide(t *testing.T) {
	a, b := newTestBatcher(1), newTestBatcher(2)
	m := overWire(t, a.Add(time.Second, beatsOf(0, 30))[0])
	hs, _, err := b.Receive(70*time.Second, "a", m)
	if err != nil {
		t.Fatal(err)
	}
	answer := func(h Heartbeat, commit ident.Index) OutgoingHeartbeat {
		return OutgoingHeartbeat{To: "a", Address: "a:1", Heartbeat: Heartbeat{
			Tablet: h.Tablet, From: h.To, To: h.From, Term: h.Term, Commit: commit, Sent: h.Sent, Answer: true,
		}}
	}
	in := []OutgoingHeartbeat{answer(hs[0], 7), answer(hs[1], 8)}
	if full := b.Add(70*time.Second+20*time.Millisecond, in); len(full) != 0 {
		t.Fatal("answers don't wait")
	}
	due := b.Flush(70*time.Second + 120*time.Millisecond)
	if len(due) != 1 {
		t.Fatalf("%d batches", len(due))
	}
	// 5 ms there, 20 ms in the group, 100 ms for others, 5 ms back.
	out, roundTrip, err := a.Receive(time.Second+130*time.Millisecond, "b", overWire(t, due[0]))
	if err != nil || roundTrip != 30*time.Millisecond {
		t.Fatalf("round trip %s, %v", roundTrip, err)
	}
	want := plain(in)
	if !slices.Equal(out, unsent(want)) {
		t.Fatalf("got %+v", out)
	}
}

// TestNumbersWearOut shows that groups which are gone don't keep their numbers for ever.
func TestNumbersWearOut(t *testing.T) {
	a, b := newTestBatcher(1), newTestBatcher(2)
	for n := 0; n < 20_000; n += 15 {
		hs := append(beatsOf(0, 15), beatsOf(100+n, 115+n)...) // half of them are never seen again
		now := time.Duration(n) * 100 * time.Millisecond
		out, _, err := b.Receive(now, "a", overWire(t, a.Add(now, hs)[0]))
		if err != nil || !slices.Equal(unsent(out), plain(hs)) {
			t.Fatalf("after %d: got %+v, %v", n, out, err)
		}
	}
	if n := len(a.peers["b"].given.given); n > 2*minNumbers {
		t.Fatalf("%d numbers are kept", n)
	}
	if n := len(b.peers["a"].taken.keys); n > 2*minNumbers {
		t.Fatalf("%d numbers are remembered", n)
	}
}

// TestHeartbeatBytes holds the wire form to its aim of 16 bytes a heartbeat, with all that goes with it.
func TestHeartbeatBytes(t *testing.T) {
	a := newTestBatcher(0xfedcba9876543210)
	a.Add(0, beatsOf(0, 30))
	batch := a.Add(time.Hour, beatsOf(0, 30))[0]
	n := proto.Size(&nyalav1.PeerBatch{Clock: 1 << 63, Messages: []*nyalav1.GroupMessage{batch.Message()}})
	t.Logf("%d bytes for 30 heartbeats: %.1f each", n, float64(n)/30)
	if n > 30*16 {
		t.Fatalf("%d bytes for 30 heartbeats", n)
	}
}

// FuzzReadHeartbeats shows that no bytes from the wire panic, that what is remembered is bounded, and that what is read can be
// written and read again.
func FuzzReadHeartbeats(f *testing.F) {
	a := newTestBatcher(1)
	for _, in := range [][]OutgoingHeartbeat{beatsOf(0, 30), beatsOf(10, 40)} {
		raw, err := proto.Marshal(a.Add(5, in)[0].Heartbeats)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	raw, _ := proto.Marshal(&nyalav1.Heartbeats{Epoch: 1, Number: []int64{-1}, Term: []uint64{1}, Commit: []uint64{1}, Held: []int64{2}})
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := new(nyalav1.Heartbeats)
		if proto.Unmarshal(raw, m) != nil {
			return
		}
		b := newTestBatcher(7)
		hs, _, err := b.Receive(0, "a", m)
		if err != nil {
			return
		}
		if len(b.peers["a"].unknown) > maxAnswers || len(b.peers["a"].taken.keys) > len(m.GetGroups()) {
			t.Fatal("too much is remembered")
		}
		var again nyalav1.Heartbeats
		var n numbering
		var beats, answers []Heartbeat
		for _, h := range unsent(hs) {
			if h.Answer {
				answers = append(answers, h)
			} else {
				beats = append(beats, h)
			}
		}
		n.write(&again, beats, answers)
		var r readings
		back, unknown, err := r.read(&again)
		if err != nil || len(unknown) != 0 || !slices.Equal(back, append(beats, answers...)) {
			t.Fatalf("%+v came back as %+v, %v, %v", hs, back, unknown, err)
		}
	})
}

func BenchmarkHeartbeatBatch(b *testing.B) {
	send, receive := newTestBatcher(1), newTestBatcher(2)
	hs := beatsOf(0, 30)
	b.ReportAllocs()
	for b.Loop() {
		batch := send.Add(0, hs)[0]
		raw, err := proto.Marshal(batch.Message())
		if err != nil {
			b.Fatal(err)
		}
		m := new(nyalav1.GroupMessage)
		if err := proto.Unmarshal(raw, m); err != nil {
			b.Fatal(err)
		}
		if out, _, err := receive.Receive(0, "a", m.GetHeartbeats()); err != nil || len(out) != 30 {
			b.Fatal(len(out), err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/30, "ns/heartbeat")
}
