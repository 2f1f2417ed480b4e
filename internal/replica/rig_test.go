package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/tablet"
)

// rig is a few servers in this process, each with folders, ports and parts of its own, as in production; only their
// timers run faster.
type rig struct {
	t         testing.TB
	heartbeat time.Duration
	cluster   ident.ClusterID
	servers   []*server
}

// server is one of them, over its starts.
type server struct {
	rig  *rig
	name string
	dir  string
	addr string // the same at each start
	edit func(*NodeConfig)

	n      *Node
	reg    *prometheus.Registry
	stopIt context.CancelFunc
	killIt chan struct{}
	ended  chan error
}

var errKilled = errors.New("killed by the test")

func newRig(t testing.TB, n int) *rig {
	t.Helper()
	r := &rig{t: t, heartbeat: 120 * time.Millisecond, cluster: ident.ClusterID(ident.New())}
	for i := range n {
		r.servers = append(r.servers, &server{rig: r, name: fmt.Sprintf("ts%d", i), dir: t.TempDir(), addr: "127.0.0.1:0"})
	}
	t.Cleanup(func() {
		for _, s := range r.servers {
			if s.n != nil {
				s.kill()
			}
		}
	})
	return r
}

// startAll starts the servers that aren't running, and waits until their replicas are open.
func (r *rig) startAll() *rig {
	r.t.Helper()
	for _, s := range r.servers {
		if s.n == nil {
			s.start()
		}
	}
	return r
}

func (s *server) start() {
	s.rig.t.Helper()
	s.open()
	s.run()
	s.rig.until("the replicas are open", func() bool {
		ok, _ := s.n.Replicas.Ready()
		return ok
	})
}

// open opens the server's folders and binds its port, and answers nothing yet.
func (s *server) open() {
	s.rig.t.Helper()
	cfg := DefaultNodeConfig()
	cfg.FS = fs.Config{WALDir: s.dir, Role: fs.TabletServer}
	cfg.RPC.BindAddresses = []string{s.addr}
	cfg.RPC.StopTimeout = 30 * time.Second // a call that isn't ended by the stop itself fails the test by its time
	cfg.Peers.BackoffMin, cfg.Peers.BackoffMax = 10*time.Millisecond, 30*time.Millisecond
	cfg.Consensus.HeartbeatInterval = s.rig.heartbeat
	cfg.Tablet.CacheBytes, cfg.Tablet.MemtableBytes = 8<<20, 1<<20
	cfg.WAL.ReservedBytes = 0
	cfg.StepDownTimeout = 2 * time.Second
	cfg.Logger = slog.New(slog.DiscardHandler)
	s.reg = prometheus.NewPedanticRegistry()
	cfg.Registerer = s.reg
	if s.edit != nil {
		s.edit(&cfg)
	}
	n, err := OpenNode(cfg)
	require.NoError(s.rig.t, err)
	s.n, s.addr = n, n.Addresses()[0]
	require.NoError(s.rig.t, n.SetClusterID(s.rig.cluster))
}

func (s *server) run() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopIt, s.killIt, s.ended = cancel, make(chan struct{}), make(chan error, 1)
	n, kill, ended := s.n, s.killIt, s.ended
	go func() {
		ended <- n.Run(ctx, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case <-kill:
				return errKilled
			}
		})
	}()
}

// stop stops the server as SIGTERM does.
func (s *server) stop() {
	s.rig.t.Helper()
	s.stopIt()
	require.NoError(s.rig.t, <-s.ended)
	s.n = nil
}

// kill stops it without handing anything over.
func (s *server) kill() {
	s.rig.t.Helper()
	close(s.killIt)
	require.ErrorIs(s.rig.t, <-s.ended, errKilled)
	s.stopIt()
	s.n = nil
}

func (s *server) replica(id ident.TabletID) *Replica {
	s.rig.t.Helper()
	r, err := s.n.Replicas.Replica(id)
	require.NoError(s.rig.t, err)
	return r
}

// create makes a tablet with a replica on each of the given servers; the last one stands first in the config, so that it
// campaigns when the others are there.
func (r *rig) create(on ...*server) ident.TabletID {
	r.t.Helper()
	id := ident.TabletID(ident.New())
	for _, s := range on {
		require.NoError(r.t, s.n.Replicas.Create(r.t.Context(), r.record(id, s, on...)))
	}
	return id
}

func (r *rig) record(id ident.TabletID, s *server, on ...*server) *nyalav1.ReplicaRecord {
	rec := &nyalav1.ReplicaRecord{
		TabletId: string(id), TableId: string(id), TableName: "t", Schema: testSchema(r.t).ToProto(),
		PartitionSchema: &nyalav1.PartitionSchema{}, Partition: &nyalav1.Partition{},
		Config: &nyalav1.RaftConfig{NextReplicaId: uint64(len(on)) + 1},
	}
	for i := len(on) - 1; i >= 0; i-- {
		p := &nyalav1.Peer{ReplicaId: uint64(i) + 1, ServerId: string(on[i].n.ServerID()), Address: on[i].addr}
		rec.Config.Peers = append(rec.Config.Peers, p)
		if on[i] == s {
			rec.ReplicaId = p.GetReplicaId()
		}
	}
	return rec
}

// leader waits until one of the running servers leads the tablet and can be written to.
func (r *rig) leader(id ident.TabletID) *server {
	r.t.Helper()
	var found *server
	r.until(fmt.Sprintf("tablet %s has a leader", id), func() bool {
		for _, s := range r.servers {
			if s.n == nil {
				continue
			}
			if st, ok := s.n.host.Status(id); ok && st.Ready {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

func (r *rig) followers(id ident.TabletID) []*server {
	l := r.leader(id)
	var out []*server
	for _, s := range r.servers {
		if s != l && s.n != nil {
			out = append(out, s)
		}
	}
	return out
}

// until waits for a condition.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatalf("waited in vain until %s", what)
		}
	}
}

func testSchema(t testing.TB) *schema.Schema {
	t.Helper()
	s, err := schema.NewTable([]schema.Column{
		{Name: "id", Type: schema.Int64, Key: true},
		{Name: "v", Type: schema.String, Nullable: true},
	})
	require.NoError(t, err)
	return s
}

// inserts encodes an INSERT of each id.
func inserts(t testing.TB, ids ...int64) *nyalav1.RowOperations {
	t.Helper()
	s := testSchema(t)
	enc := schema.NewOpsEncoder(s)
	set := schema.NewBitmap(s.NumColumns())
	set.Set(0)
	set.Set(1)
	for _, id := range ids {
		require.NoError(t, enc.Append(schema.Insert, []schema.Value{schema.IntValue(id), schema.StringValue(fmt.Sprint("row ", id))}, set))
	}
	rows, indirect := enc.Bytes()
	return &nyalav1.RowOperations{Rows: rows, IndirectData: indirect}
}

// requests numbers the writes of one client.
type requests struct {
	client [16]byte
	seq    atomic.Uint64
}

func newRequests() *requests {
	c := &requests{}
	b, _ := ident.Bytes(ident.New())
	c.client = b
	return c
}

// insert makes a tracked write of the given ids.
func (c *requests) insert(t testing.TB, id ident.TabletID, ids ...int64) *nyalav1.WriteRequest {
	seq := c.seq.Add(1)
	return &nyalav1.WriteRequest{
		TabletId: string(id), RowOperations: inserts(t, ids...),
		RequestId: &nyalav1.RequestId{ClientId: c.client[:], SeqNo: seq, FirstIncompleteSeqNo: 1},
	}
}

// write writes and wants success without row errors.
func (s *server) write(req *nyalav1.WriteRequest) *nyalav1.WriteResponse {
	s.rig.t.Helper()
	resp, err := s.replica(ident.TabletID(req.GetTabletId())).Write(s.rig.t.Context(), req)
	require.NoError(s.rig.t, err)
	require.Empty(s.rig.t, resp.GetRowErrors())
	return resp
}

// count reads in the given mode and returns how many rows there are.
func (s *server) count(ctx context.Context, id ident.TabletID, mode nyalav1.ReadMode, snapshot, propagated hybridtime.Timestamp) (int, error) {
	t, at, err := s.replica(id).ReadPoint(ctx, mode, snapshot, propagated)
	if err != nil {
		return 0, err
	}
	sc, err := t.NewScanner(tablet.ScanSpec{Snapshot: at})
	if err != nil {
		return 0, err
	}
	defer sc.Close()
	rows := 0
	for more := true; more; {
		var b tablet.Block
		if b, more, err = sc.Next(ctx, 0); err != nil {
			return rows, err
		}
		rows += b.Rows
	}
	return rows, nil
}

func (s *server) wantRows(id ident.TabletID, mode nyalav1.ReadMode, want int) {
	s.rig.t.Helper()
	got, err := s.count(s.rig.t.Context(), id, mode, 0, 0)
	require.NoError(s.rig.t, err)
	require.Equal(s.rig.t, want, got, "%s, %s", s.name, mode)
}

// value returns what a counter or gauge stands at.
func value(t testing.TB, c prometheus.Collector) int {
	t.Helper()
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	require.NoError(t, err)
	m := families[0].GetMetric()[0]
	return int(m.GetCounter().GetValue() + m.GetGauge().GetValue())
}

func (s *server) inFlight() int { return value(s.rig.t, s.n.Replicas.metrics.inFlight) }

const (
	latest     = nyalav1.ReadMode_READ_MODE_READ_LATEST
	atSnapshot = nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT
	yourWrites = nyalav1.ReadMode_READ_MODE_READ_YOUR_WRITES
)

func ts(resp *nyalav1.WriteResponse) hybridtime.Timestamp {
	return hybridtime.Timestamp(resp.GetTimestamp())
}

// writeOp is the payload of an untracked write.
func writeOp(t testing.TB, ids ...int64) []byte {
	t.Helper()
	b, err := proto.Marshal(&nyalav1.WriteOp{RowOperations: inserts(t, ids...)})
	require.NoError(t, err)
	return b
}
