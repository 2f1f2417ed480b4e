package replica

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/status"
)

// spoilLog flips a bit wherever a stopped server's WAL holds text, as a bad disk does.
func (s *server) spoilLog(text string) (spoiled int) {
	t := s.rig.t
	t.Helper()
	path := fs.WALPath(s.dir)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	for at := 0; ; at++ {
		i := bytes.Index(data[at:], []byte(text))
		if i < 0 {
			return spoiled
		}
		at += i
		_, err := f.WriteAt([]byte{text[0] ^ 1}, int64(at))
		require.NoError(t, err)
		spoiled++
	}
}

// TestDamagedLogFailsOneReplica: an entry whose checksum is wrong costs the replica whose entry it is, and its group goes on
// without; it takes no part under its id again, until it is deleted.
func TestDamagedLogFailsOneReplica(t *testing.T) {
	r := newRig(t, 3).startAll()
	bad, good := r.create(r.servers...), r.create(r.servers...)
	c := newRequests()
	r.leader(bad).write(c.insert(t, bad, 777_001))
	r.leader(good).write(c.insert(t, good, 1))
	s := r.servers[1]
	s.wantRows(bad, atSnapshot, 1)
	s.kill()
	require.Positive(t, s.spoilLog("row 777001"))
	s.start()
	st := s.replica(bad).Status()
	require.Equal(t, nyalav1.TabletState_TABLET_STATE_FAILED, st.GetState())
	require.NotEmpty(t, st.GetError())
	_, err := s.replica(bad).Write(t.Context(), c.insert(t, bad, 2))
	require.Equal(t, status.TabletFailed, status.CodeOf(err), "%v", err)
	r.leader(bad).write(c.insert(t, bad, 2))
	r.leader(good).write(c.insert(t, good, 2))
	s.wantRows(good, atSnapshot, 2)
	s.kill()
	s.start()
	require.Equal(t, nyalav1.TabletState_TABLET_STATE_FAILED, s.replica(bad).Status().GetState(), "it stays failed")
	require.NoError(t, s.n.Replicas.Delete(t.Context(), bad))
	s.stop()
	s.start()
	require.Len(t, s.n.Replicas.Statuses(), 1)
}
