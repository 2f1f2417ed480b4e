package consensus

import (
	"fmt"
	"testing"

	dto "github.com/prometheus/client_model/go"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// histogram reads what a histogram has counted.
func histogram(t testing.TB, m interface{ Write(*dto.Metric) error }) *dto.Histogram {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetHistogram()
}

// TestHostBatchesHeartbeats shows 100 groups on three servers that are led on with heartbeats in batches, and as well with each
// by itself; that no batch holds too many; that a batch counts its bytes and its round trip; and that a server which doesn't
// batch understands one that does.
func TestHostBatchesHeartbeats(t *testing.T) {
	for _, tc := range []struct {
		name    string
		batched []bool // by host
	}{{"batched", []bool{true, true, true}}, {"singly", []bool{false, false, false}}, {"mixed", []bool{true, false, true}}} {
		t.Run(tc.name, func(t *testing.T) {
			const groups = 100
			c := newTestCluster(t, 0)
			for i, on := range tc.batched {
				c.cfg.BatchHeartbeats = on
				c.add(fmt.Sprintf("s%d", i+1))
			}
			for i := range groups {
				c.createGroup(testTablet(i), 3)
			}
			for i := range groups {
				c.leader(testTablet(i))
			}
			begun := make([]float64, len(c.hosts))
			for i, h := range c.hosts {
				begun[i] = counted(t, h.metrics.noOpHeartbeats)
			}
			last := c.hosts[2] // it campaigned first, and so leads nearly all
			if !eventually(t, func() bool { return counted(t, last.metrics.noOpHeartbeats) > begun[2]+2*groups*10 }) {
				t.Fatal("too few heartbeats")
			}
			for i, h := range c.hosts {
				batches, sizes := counted(t, h.metrics.heartbeatBatches), histogram(t, h.metrics.heartbeatGroups)
				if !tc.batched[i] {
					if batches != 0 {
						t.Errorf("server %s: %v batches", h.id, batches)
					}
					continue
				}
				if uint64(batches) != sizes.GetSampleCount() || sizes.GetSampleSum() > 30*batches {
					t.Errorf("server %s: %v batches, %v groups in them", h.id, batches, sizes.GetSampleSum())
				}
			}
			if tc.batched[2] {
				n, batches := counted(t, last.metrics.noOpHeartbeats), counted(t, last.metrics.heartbeatBatches)
				bytes := counted(t, last.metrics.heartbeatBytes)
				t.Logf("%.1f heartbeats a batch, %.1f bytes each", n/batches, bytes/n)
				if n/batches < 5 || bytes/n > 16 {
					t.Errorf("%v heartbeats of %v bytes in %v batches", n, bytes, batches)
				}
				if histogram(t, last.metrics.heartbeatTrip).GetSampleCount() == 0 {
					t.Error("no round trip was measured")
				}
			}
		})
	}
}

// sentOrder notes what is sent, in order.
type sentOrder []*nyalav1.GroupMessage

func (s *sentOrder) Send(_ ident.ServerID, _ string, _ Channel, msgs []*nyalav1.GroupMessage) {
	*s = append(*s, msgs...)
}

// TestOfferBehindHeartbeats: an offer to rest doesn't overtake a heartbeat that waits for others, which would wake the follower
// again; what waits for other servers goes on waiting.
func TestOfferBehindHeartbeats(t *testing.T) {
	var sent sentOrder
	h := &testHost{}
	cfg := DefaultConfig()
	cfg.ServerID = "a"
	host, err := NewHost(cfg, Deps{Log: wal.NewMem(), Clock: newTestClock(), Transport: &sent, Applier: h, Observer: h, Blamed: h.judged.Load})
	if err != nil {
		t.Fatal(err)
	}
	beat := Heartbeat{From: 1, To: 2, Term: 1}
	host.heartbeats.send([]OutgoingHeartbeat{{To: "b", Address: "b:1", Heartbeat: beat}, {To: "c", Address: "c:1", Heartbeat: beat}})
	offer := Outgoing{To: "b", Address: "b:1", Channel: Control, Message: &nyalav1.GroupMessage{
		Kind: &nyalav1.GroupMessage_QuietOffer{QuietOffer: &nyalav1.QuietOffer{Term: 1}},
	}}
	host.workers[0].send([]Outgoing{offer, offer})
	if len(sent) != 3 || len(sent[0].GetHeartbeats().GetNumber()) != 1 || sent[1].GetQuietOffer() == nil || sent[2].GetQuietOffer() == nil {
		t.Errorf("sent %v", sent)
	}
	if _, waits := host.heartbeats.batcher.Due(); !waits {
		t.Error("a heartbeat to another server left too")
	}
}
