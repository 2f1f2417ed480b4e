package replica

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// TestReadOfReplicaThatHeardNothing starts one of three servers alone, its log cut behind what its store holds: a read is
// an error there, never a tablet without rows.
func TestReadOfReplicaThatHeardNothing(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	c := newRequests()
	leader := r.leader(id)
	for i := range int64(40) {
		leader.write(c.insert(t, id, i))
	}
	for _, s := range r.servers {
		s.wantRows(id, atSnapshot, 40)
		require.NoError(t, s.n.store.Flush())
	}
	r.until("the logs are cut", func() bool {
		for _, s := range r.servers {
			if st, _ := s.n.host.Status(id); st.FirstIndex < 10 {
				return false
			}
		}
		return true
	})
	for _, s := range r.servers {
		s.stop()
	}
	s := r.servers[0]
	s.start()
	for _, mode := range []nyalav1.ReadMode{latest, atSnapshot, yourWrites} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		rows, err := s.count(ctx, id, mode, 0, 0)
		cancel()
		require.Error(t, err, "%s returned %d rows", mode, rows)
		code := status.CodeOf(err)
		require.True(t, code == status.NotTheLeader || code == status.TimedOut, "%s: %v", mode, err)
		require.Contains(t, err.Error(), string(id))
	}
	r.startAll()
	r.leader(id)
	s.wantRows(id, atSnapshot, 40)
	s.wantRows(id, yourWrites, 40)
}

// TestReadsWhileWriting reads on every server at every moment: what was acknowledged before a read is in it, and a snapshot
// read again is the same.
func TestReadsWhileWriting(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	c := newRequests()
	leader := r.leader(id)
	for i := range int64(25) {
		resp := leader.write(c.insert(t, id, i))
		leader.wantRows(id, latest, int(i)+1)
		s := r.servers[i%3]
		s.wantRows(id, atSnapshot, int(i)+1)
		for _, s := range r.servers {
			rows, err := s.count(t.Context(), id, atSnapshot, ts(resp)+1, 0)
			require.NoError(t, err)
			require.Equal(t, int(i)+1, rows)
		}
	}
}

// applyGroups is a call of Apply with two groups: in the first a good entry and one that can't be decoded, in the second a
// good one.
func applyGroups(t *testing.T, s *server, bad, good ident.TabletID) []consensus.ApplyGroup {
	t.Helper()
	entry := func(id ident.TabletID, after ident.Index, payload []byte) consensus.CommittedEntry {
		tab, err := s.replica(id).Tablet()
		require.NoError(t, err)
		index, _ := tab.Applied()
		now, err := s.n.Clock.Now()
		require.NoError(t, err)
		return consensus.CommittedEntry{OpID: op(1, index+after), Kind: wal.KindWrite, Timestamp: now, Payload: payload}
	}
	return []consensus.ApplyGroup{
		{Tablet: bad, Entries: []consensus.CommittedEntry{entry(bad, 1, writeOp(t, 1)), entry(bad, 2, []byte{0xff})}},
		{Tablet: good, Entries: []consensus.CommittedEntry{entry(good, 1, writeOp(t, 1))}},
	}
}
