package master

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/status"
	tabletserver "github.com/nyaladb/nyala/internal/tserver"
)

// rig is a cluster in this process: a master and tablet servers, with folders, ports and parts of their own. Only their
// timers run faster.
type rig struct {
	t      *testing.T
	master *server
	ts     []*server
}

// server is one of them, over its starts.
type server struct {
	rig  *rig
	role fs.Role
	dir  string
	addr string // the same at each start
	cfg  Config // of a master

	n     *replica.Node
	m     *Master
	kills chan struct{}
	stops context.CancelFunc
	ended chan error
}

var errKilled = errors.New("killed by the test")

// newRig starts a master and n tablet servers, and waits until all are ready.
func newRig(t *testing.T, n int) *rig {
	t.Helper()
	r := &rig{t: t}
	r.master = &server{rig: r, role: fs.Master, dir: t.TempDir(), addr: "127.0.0.1:0", cfg: DefaultConfig()}
	for range n {
		r.ts = append(r.ts, &server{rig: r, role: fs.TabletServer, dir: t.TempDir(), addr: "127.0.0.1:0"})
	}
	t.Cleanup(func() {
		for _, s := range append(r.ts, r.master) {
			if s.n != nil {
				s.kill()
			}
		}
	})
	r.master.start()
	for _, s := range r.ts {
		s.start()
	}
	r.alive(n)
	return r
}

// alive waits until so many tablet servers are known to be.
func (r *rig) alive(n int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%d tablet servers are alive", n), func() bool { return len(r.master.m.servers.alive(time.Now())) == n })
}

func (s *server) start() {
	s.rig.t.Helper()
	cfg := replica.DefaultNodeConfig()
	cfg.FS = fs.Config{WALDir: s.dir, Role: s.role}
	cfg.RPC.BindAddresses = []string{s.addr}
	cfg.RPC.StopTimeout = 30 * time.Second // a call that isn't ended by the stop itself fails the test by its time
	cfg.Peers.BackoffMin, cfg.Peers.BackoffMax = 10*time.Millisecond, 30*time.Millisecond
	cfg.Consensus.HeartbeatInterval = 50 * time.Millisecond
	cfg.Tablet.CacheBytes, cfg.Tablet.MemtableBytes = 8<<20, 1<<20
	cfg.WAL.ReservedBytes = 0
	cfg.Logger = slog.New(slog.DiscardHandler)
	n, err := replica.OpenNode(cfg)
	require.NoError(s.rig.t, err)
	s.n, s.addr = n, n.Addresses()[0]
	ctx, cancel := context.WithCancel(context.Background())
	s.stops, s.kills, s.ended = cancel, make(chan struct{}), make(chan error, 1)
	var run func(context.Context) error
	var ready func() (bool, string)
	if s.role == fs.Master {
		s.cfg.Logger = cfg.Logger
		m, err := New(s.cfg, n, &nyalav1.MasterInfo{ServerId: string(n.ServerID()), RpcAddresses: n.Addresses()})
		require.NoError(s.rig.t, err)
		nyalav1.RegisterMasterServiceServer(n.RPC, m.Service())
		s.m, run, ready = m, m.Run, m.Ready
	} else {
		tcfg := tabletserver.DefaultConfig()
		tcfg.Masters, tcfg.HeartbeatInterval = []string{s.rig.master.addr}, 50*time.Millisecond
		tcfg.Registration = &nyalav1.TSRegistration{RpcAddresses: n.Addresses()}
		tcfg.Logger = cfg.Logger
		ts, err := tabletserver.New(tcfg, n)
		require.NoError(s.rig.t, err)
		nyalav1.RegisterTabletServiceServer(n.RPC, ts.Service())
		nyalav1.RegisterTabletAdminServiceServer(n.RPC, ts.AdminService())
		run, ready = ts.Run, ts.Ready
	}
	kills, ended := s.kills, s.ended
	go func() {
		ended <- n.Run(ctx, func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- run(ctx) }()
			select {
			case err := <-done:
				return err
			case <-kills:
				cancel()
				return errors.Join(errKilled, <-done)
			}
		})
	}()
	s.rig.until("the server is ready", func() bool {
		ok, _ := ready()
		return ok
	})
}

// stop stops the server as SIGTERM does.
func (s *server) stop() {
	s.rig.t.Helper()
	s.stops()
	require.NoError(s.rig.t, <-s.ended)
	s.n = nil
}

// kill stops it without handing anything over.
func (s *server) kill() {
	s.rig.t.Helper()
	close(s.kills)
	require.ErrorIs(s.rig.t, <-s.ended, errKilled)
	s.stops()
	s.n = nil
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

// dial connects to a server, as a client that belongs to no cluster so far.
func (s *server) dial() *clientConns {
	s.rig.t.Helper()
	cc, err := rpc.Dial(s.addr, rpc.DialOptions{})
	require.NoError(s.rig.t, err)
	s.rig.t.Cleanup(func() { cc.Close() })
	return &clientConns{nyalav1.NewMasterServiceClient(cc), nyalav1.NewTabletAdminServiceClient(cc)}
}

type clientConns struct {
	nyalav1.MasterServiceClient
	nyalav1.TabletAdminServiceClient
}

func tableRequest(name string, buckets, replicas int) *nyalav1.CreateTableRequest {
	id, _ := ident.Bytes(ident.New())
	req := &nyalav1.CreateTableRequest{
		Name: name, NumReplicas: uint32(replicas), RequestId: id[:],
		Schema: &nyalav1.Schema{Columns: []*nyalav1.ColumnSchema{
			{Name: "id", Type: nyalav1.DataType_DATA_TYPE_INT64, IsKey: true},
			{Name: "v", Type: nyalav1.DataType_DATA_TYPE_STRING, Nullable: true},
		}},
	}
	if buckets > 1 {
		req.Hash = []*nyalav1.CreateTableRequest_HashByName{{Columns: []string{"id"}, NumBuckets: uint32(buckets)}}
	}
	return req
}

func byName(name string) *nyalav1.TableIdentifier { return &nyalav1.TableIdentifier{Name: name} }

// create makes a table and waits until each tablet has a leader.
func (r *rig) create(req *nyalav1.CreateTableRequest) *nyalav1.CreateTableResponse {
	r.t.Helper()
	c := r.master.dial()
	resp, err := c.CreateTable(r.t.Context(), req)
	require.NoError(r.t, status.FromGRPC(err))
	r.awaitLeaders(req.GetName())
	return resp
}

func (r *rig) awaitLeaders(name string) {
	r.t.Helper()
	c := r.master.dial()
	r.until("every tablet of "+name+" has a leader", func() bool {
		done, err := c.IsCreateTableDone(r.t.Context(), &nyalav1.IsCreateTableDoneRequest{Table: byName(name)})
		require.NoError(r.t, status.FromGRPC(err))
		return done.GetDone()
	})
}

func (r *rig) locations(name string) []*nyalav1.TabletLocations {
	r.t.Helper()
	resp, err := r.master.dial().GetTableLocations(r.t.Context(), &nyalav1.GetTableLocationsRequest{Table: byName(name)})
	require.NoError(r.t, status.FromGRPC(err))
	return resp.GetTablets()
}

func leaderOf(l *nyalav1.TabletLocations) *nyalav1.ReplicaLocation {
	for _, r := range l.GetReplicas() {
		if r.GetRole() == nyalav1.Role_ROLE_LEADER {
			return r
		}
	}
	return nil
}

// held lists what the running tablet servers hold.
func (r *rig) held() map[ident.TabletID]int {
	out := map[ident.TabletID]int{}
	for _, s := range r.ts {
		if s.n == nil {
			continue
		}
		for _, st := range s.n.Replicas.Statuses() {
			out[ident.TabletID(st.GetTabletId())]++
		}
	}
	return out
}
