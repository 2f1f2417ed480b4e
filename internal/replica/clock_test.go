package replica

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

const fortyYears = 40 * 365 * 24 * time.Hour

// mocked gives every server of the rig a mock clock, and a mind of its own about jumps wherever the test runs.
func (r *rig) mocked() *rig {
	for _, s := range r.servers {
		s.edit = func(c *NodeConfig) {
			c.Clock.TimeSource, c.Clock.UnlockUnsafeFlags = clock.SourceMock, true
			c.Clock.WallClockJumpDetection = clock.DetectionEnabled
		}
	}
	return r
}

// introduce tells all running servers of each other, as a master would.
func (r *rig) introduce(version uint64) {
	var all []Server
	for _, s := range r.servers {
		if s.n != nil {
			all = append(all, Server{ID: s.n.ServerID(), Address: s.addr})
		}
	}
	for _, s := range r.servers {
		if s.n != nil {
			s.n.SetServers(version, all)
		}
	}
}

func (s *server) service() *serverService { return &serverService{n: s.n} }

func (s *server) mock(f *nyalav1.MockClockRequest) {
	_, err := s.service().MockClock(s.rig.t.Context(), f)
	require.NoError(s.rig.t, err)
}

// clockOf is what GetClock says.
func (s *server) clockOf() *nyalav1.GetClockResponse {
	resp, err := s.service().GetClock(s.rig.t.Context(), &nyalav1.GetClockRequest{})
	require.NoError(s.rig.t, err)
	return resp
}

// stamps returns the timestamps in a replica's log.
func (s *server) stamps(id ident.TabletID) (all []hybridtime.Timestamp) {
	log := s.n.log.Log(s.replica(id).Number())
	first, err := log.FirstIndex()
	require.NoError(s.rig.t, err)
	last, err := log.LastIndex()
	require.NoError(s.rig.t, err)
	entries, err := log.Entries(first, last+1, math.MaxUint64)
	require.NoError(s.rig.t, err)
	for _, e := range entries {
		info, err := wal.DecodeEntry(e)
		require.NoError(s.rig.t, err)
		all = append(all, info.Timestamp)
	}
	return all
}

// knows says how many others' clocks the server has measured.
func (s *server) knows() (n int) {
	for _, p := range s.clockOf().GetPeers() {
		if p.GetKnown() {
			n++
		}
	}
	return n
}

// TestServersSwapBeats shows that servers that were told of each other know each other's clocks soon, within a few
// milliseconds of the truth; that a server that starts anew knows whom to ask; and that who left is forgotten.
func TestServersSwapBeats(t *testing.T) {
	r := newRig(t, 3).mocked().startAll()
	require.Equal(t, "there is no other server", r.servers[0].clockOf().GetOpinion())
	r.introduce(7)
	require.EqualValues(t, 7, r.servers[0].n.ServersVersion())
	knowAll := func() bool {
		for _, s := range r.servers {
			if s.knows() != 2 {
				return false
			}
		}
		return true
	}
	r.until("all know all", knowAll)
	r.servers[2].mock(&nyalav1.MockClockRequest{Offset: int64(3 * time.Second)})
	r.until("the first sees the third ahead", func() bool {
		for _, p := range r.servers[0].clockOf().GetPeers() {
			if ahead := time.Duration(p.GetOffsetUsec()) * time.Microsecond; p.GetServerId() == string(r.servers[2].n.ServerID()) {
				return p.GetKnown() && (ahead-3*time.Second).Abs() < 300*time.Millisecond
			}
		}
		return false
	})
	require.Equal(t, "open", r.servers[2].clockOf().GetState())

	r.servers[1].stop()
	r.servers[1].start()
	require.Equal(t, 2, r.servers[1].n.Clock.Status().Opinion.Others)
	require.Zero(t, r.servers[1].n.ServersVersion())
	r.until("all know all again", knowAll)

	gone := r.servers[2].n.ServerID()
	r.servers[2].stop()
	r.introduce(8)
	r.until("the third is forgotten", func() bool {
		for _, p := range r.servers[0].clockOf().GetPeers() {
			if p.GetServerId() == string(gone) {
				return false
			}
		}
		return r.servers[0].n.Clock.Status().Opinion.Others == 1
	})
}

// TestFencedServerLeadsNothing jumps the leader's clock by 40 years: the very first write there is refused, the tablet is led
// elsewhere, no log holds a timestamp from then, and the server comes back once its clock is right and somebody says so.
func TestFencedServerLeadsNothing(t *testing.T) {
	r := newRig(t, 3).mocked().startAll()
	r.introduce(1)
	id := r.create(r.servers...)
	c := newRequests()
	leader := r.leader(id)
	before := leader.write(c.insert(t, id, 1))

	leader.mock(&nyalav1.MockClockRequest{Offset: int64(fortyYears)})
	_, err := leader.replica(id).Write(t.Context(), c.insert(t, id, 2))
	require.True(t, status.CodeOf(err) == status.Clock || status.CodeOf(err) == status.NotTheLeader, "%v", err)
	require.Contains(t, leader.n.ClockTrouble(), "fenced: the wall clock jumped")
	st, err := leader.service().GetStatus(t.Context(), nil)
	require.NoError(t, err)
	require.Contains(t, st.GetClock(), "fenced")

	var next *server
	r.until("another server leads", func() bool {
		next = r.leader(id)
		return next != leader
	})
	next.write(c.insert(t, id, 3))
	last := next.write(c.insert(t, id, 4))
	n, err := leader.count(t.Context(), id, atSnapshot, ts(last)+1, 0)
	require.NoError(t, err, "a fenced server still reads at snapshots")
	require.Equal(t, 3, n)
	_, err = leader.count(t.Context(), id, atSnapshot, 0, 0)
	require.Equal(t, status.Clock, status.CodeOf(err), "%v", err)
	for _, s := range r.servers {
		limit := hybridtime.FromTime(time.Now().Add(10 * time.Second))
		for _, stamp := range s.stamps(id) {
			require.Less(t, stamp, limit)
		}
		require.Less(t, s.n.Clock.Latest(), limit)
		require.GreaterOrEqual(t, s.n.Clock.Latest(), ts(before))
	}
	require.Never(t, func() bool { s, _ := leader.n.host.Status(id); return s.Ready }, 5*r.heartbeat, r.heartbeat)

	leader.mock(&nyalav1.MockClockRequest{})
	r.until("it has seen that", func() bool { return leader.clockOf().GetDisplacedUsec() < 1_000_000 })
	_, err = leader.service().AcceptClock(t.Context(), &nyalav1.AcceptClockRequest{Reason: "test"})
	require.NoError(t, err)
	r.until("it is trusted", func() bool { return leader.n.ClockTrouble() == "" })
	r.until("it leads again and is written to", func() bool {
		if led := r.leader(id); led != leader {
			_ = led.replica(id).StepDown(t.Context(), leader.n.ServerID())
			return false
		}
		_, err := leader.replica(id).Write(t.Context(), c.insert(t, id, 5))
		return err == nil
	})
}

// TestMockNeedsMock shows that faults are laid over no other source than a mock one.
func TestMockNeedsMock(t *testing.T) {
	r := newRig(t, 1).startAll()
	_, err := r.servers[0].service().MockClock(t.Context(), &nyalav1.MockClockRequest{Offset: 1})
	require.Equal(t, status.IllegalState, status.CodeOf(err))
	require.Contains(t, err.Error(), "--time_source=mock")
}

// TestSnapshotAhead reads at snapshots that lie ahead: a little ahead it waits until that is past, or for its caller's
// deadline; far ahead it is refused at once. The clock isn't moved by any of it.
func TestSnapshotAhead(t *testing.T) {
	r := newRig(t, 1).startAll()
	s := r.servers[0]
	id := r.create(s)
	r.leader(id)
	s.write(newRequests().insert(t, id, 1))
	in := func(d time.Duration) hybridtime.Timestamp { return hybridtime.FromTime(time.Now().Add(d)) }

	began := time.Now()
	n, err := s.count(t.Context(), id, atSnapshot, in(300*time.Millisecond), 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.GreaterOrEqual(t, time.Since(began), 299*time.Millisecond)

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.count(ctx, id, atSnapshot, in(5*time.Second), 0)
	require.Equal(t, status.TimedOut, status.CodeOf(err), "%v", err)

	for _, at := range []hybridtime.Timestamp{in(time.Hour), math.MaxInt64, math.MaxUint64} {
		_, err = s.count(t.Context(), id, atSnapshot, at, 0)
		require.Equal(t, status.InvalidSnapshot, status.CodeOf(err), "%v", err)
		_, err = s.count(t.Context(), id, yourWrites, 0, at)
		require.Equal(t, status.InvalidArgument, status.CodeOf(err), "%v", err)
	}
	require.Less(t, s.n.Clock.Latest(), in(100*time.Millisecond))
}

// TestCommitWait shows that an answer is held back for twice the clock's error bound, and that a caller who can't wait that
// long, or whose server is fenced meanwhile, asks again and waits for the rest.
func TestCommitWait(t *testing.T) {
	r := newRig(t, 1).mocked().startAll()
	s := r.servers[0]
	id := r.create(s)
	r.leader(id)
	const bound = 150 * time.Millisecond
	s.mock(&nyalav1.MockClockRequest{MaxError: int64(bound)})
	r.until("the bound is known", func() bool { return s.n.Clock.MaxError() >= bound })
	req := newRequests().insert(t, id, 1)
	req.CommitWait = true

	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	_, err := s.replica(id).Write(ctx, req)
	require.Equal(t, status.TimedOut, status.CodeOf(err), "%v", err)
	resp := s.write(req)
	require.GreaterOrEqual(t, time.Since(ts(resp).Time()), 2*bound)
	s.wantRows(id, latest, 1)

	began := time.Now()
	plain := newRequests().insert(t, id, 2)
	s.write(plain)
	require.Less(t, time.Since(began), 2*bound)
	s.mock(&nyalav1.MockClockRequest{Offset: int64(fortyYears), MaxError: int64(bound)})
	plain.CommitWait = true
	_, err = s.replica(id).Write(t.Context(), plain)
	require.Equal(t, status.Clock, status.CodeOf(err), "%v", err)
}

// TestBeaterKeepsBook shows what becomes of the lists that a master sends.
func TestBeaterKeepsBook(t *testing.T) {
	self, a, b := ident.ServerID(ident.New()), ident.ServerID(ident.New()), ident.ServerID(ident.New())
	c := &fakeBeatClock{}
	bt := &beater{self: self, clock: c}
	require.True(t, bt.set(1, []Server{{self, "self:1", false}, {b, "b:1", false}, {a, "a:1", true}, {a, "a:1", true}, {"no id", "x:1", false}, {ident.ServerID(ident.New()), "", false}}))
	require.Len(t, bt.servers(), 2)
	require.Equal(t, 2, c.others)
	require.False(t, bt.set(2, bt.servers()))
	require.EqualValues(t, 2, bt.version)
	require.Equal(t, bt.servers(), decodeServers(encodeServers(bt.servers())))
	require.True(t, bt.set(3, []Server{{b, "b:2", false}}))
	require.Equal(t, []ident.ServerID{a}, c.forgotten)
	require.Equal(t, 1, c.others)
	require.Nil(t, decodeServers([]byte("\xff")))
}

type fakeBeatClock struct {
	others    int
	forgotten []ident.ServerID
}

func (f *fakeBeatClock) Beat(ident.ServerID) clock.Beat { return clock.Beat{} }
func (f *fakeBeatClock) SetPeers(others int)            { f.others = others }
func (f *fakeBeatClock) ForgetPeer(id ident.ServerID)   { f.forgotten = append(f.forgotten, id) }

// FuzzDecodeServers shows that whatever stands in the WAL is a list or none.
func FuzzDecodeServers(f *testing.F) {
	f.Add([]byte{})
	f.Add(encodeServers([]Server{{"a", "b:1", true}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		s := decodeServers(b)
		if got := decodeServers(encodeServers(s)); len(got) != len(s) {
			t.Fatalf("%v came back as %v", s, got)
		}
	})
}

// TestBeatFromLaterVersion shows that numbers which this version doesn't know are taken for the worst.
func TestBeatFromLaterVersion(t *testing.T) {
	b := clock.Beat{Sent: 1, Wall: -2, MaxError: 3, Verdict: clock.SteppedBack, State: clock.Held, Echo: 4, EchoWall: 5}
	require.Equal(t, b, beatFromProto(beatToProto(b)))
	got := beatFromProto(&nyalav1.Beat{Verdict: 99, State: 99})
	require.Equal(t, clock.Beat{Verdict: clock.Unsynchronised, State: clock.Fenced}, got)
}

// TestServersSurviveRestart shows the list in the WAL's small values.
func TestServersSurviveRestart(t *testing.T) {
	log := wal.NewMem()
	var b wal.Batch
	list := []Server{{ident.ServerID(ident.New()), "a:1", true}}
	b.SetMeta(serversKey, encodeServers(list))
	require.NoError(t, log.Commit(&b))
	require.Equal(t, list, decodeServers(log.Crash().Meta(serversKey)))
}
