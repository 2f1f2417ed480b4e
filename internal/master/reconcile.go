package master

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

const (
	// tasksAtOnce is how many calls to one tablet server are under way at a time.
	tasksAtOnce = 16
	// taskTimeout bounds one call to a tablet server, and taskRetry the pause after one that failed.
	taskTimeout = 30 * time.Second
	taskRetry   = 500 * time.Millisecond
)

// startReconciling lets each tablet server be told what it has to do, from now on until stopReconciling or the end of ctx.
func (m *Master) startReconciling(ctx context.Context, eg *errgroup.Group) {
	m.reconcile.mu.Lock()
	defer m.reconcile.mu.Unlock()
	m.reconcile.start = func(ts *tserver) {
		if !ts.conversing {
			ts.conversing = true
			eg.Go(func() error { return m.converse(ctx, ts) })
		}
	}
	for _, ts := range m.servers.all() { // those that were heard before
		m.reconcile.start(ts)
	}
}

func (m *Master) stopReconciling() {
	m.reconcile.mu.Lock()
	defer m.reconcile.mu.Unlock()
	m.reconcile.start = nil
}

// beginConversation begins to tell a server that is new here what it has to do.
func (m *Master) beginConversation(ts *tserver) {
	m.reconcile.mu.Lock()
	defer m.reconcile.mu.Unlock()
	if m.reconcile.start != nil {
		m.reconcile.start(ts)
	}
}

// converse tells one tablet server what it has to do, whenever there is something.
func (m *Master) converse(ctx context.Context, ts *tserver) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ts.wake:
		}
		for {
			create, remove := m.servers.tasks(ts, tasksAtOnce)
			alter := m.servers.alters(ts, tasksAtOnce)
			if len(create)+len(remove)+len(alter) == 0 {
				break
			}
			if !m.runTasks(ctx, ts, create, remove, alter) {
				// Unreachable or busy: its next heartbeat wakes this conversation, at the latest.
				pause(ctx, taskRetry)
				break
			}
		}
	}
}

// runTasks makes the calls and says whether all went well.
func (m *Master) runTasks(ctx context.Context, ts *tserver, create, remove, alter []ident.TabletID) bool {
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		fault error // of one of them
	)
	one := func(tablet ident.TabletID, call func(context.Context, *tserver, ident.TabletID) error, told func()) {
		wg.Go(func() {
			err := call(ctx, ts, tablet)
			if err == nil {
				told()
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if fault == nil {
				fault = fmt.Errorf("tablet %s: %w", tablet, err)
			}
		})
	}
	for _, id := range create {
		one(id, m.createOn, func() { m.servers.told(ts, id, true) })
	}
	for _, id := range remove {
		one(id, m.removeFrom, func() { m.servers.told(ts, id, false) })
	}
	for _, id := range alter {
		one(id, m.alterOn, func() {})
	}
	wg.Wait()
	m.sayFault(ctx, ts, fault)
	return fault == nil
}

// sayFault logs what keeps a server from doing what it is told, once for each kind of fault, and that it is over.
func (m *Master) sayFault(ctx context.Context, ts *tserver, fault error) {
	code := status.CodeOf(fault)
	switch {
	case ctx.Err() != nil && fault == nil || code == ts.fault:
		return
	case fault != nil:
		m.cfg.Logger.Warn("tablet server didn't do what it was told; trying on", "server", string(ts.id), "err", fault)
	default:
		m.cfg.Logger.Info("tablet server does what it is told again", "server", string(ts.id))
	}
	ts.fault = code
}

func (m *Master) createOn(ctx context.Context, ts *tserver, id ident.TabletID) error {
	m.catalog.mu.RLock()
	ti := m.catalog.tablets[id]
	if ti == nil || ti.deleted() || ti.replicaOn(ts.id) == nil || ti.changed() {
		m.catalog.mu.RUnlock()
		return nil // no longer wanted
	}
	req := &nyalav1.CreateTabletRequest{
		DestServerId:    string(ts.id),
		TabletId:        string(id),
		TableId:         string(ti.table.id),
		TableName:       ti.table.meta.GetName(),
		Schema:          schemaAt(ti.table.meta, ti.meta.GetCreatedSchemaVersion()),
		PartitionSchema: ti.table.meta.GetPartitionSchema(),
		Partition:       ti.meta.GetPartition(),
		Config:          ti.meta.GetConfig(),
	}
	address := ti.replicaOn(ts.id).GetAddress()
	m.catalog.mu.RUnlock()
	err := m.calls.create(ctx, m.servers.address(ts.id, address), req)
	if status.CodeOf(err) == status.TabletAlreadyExists {
		return nil
	}
	return err
}

func (m *Master) removeFrom(ctx context.Context, ts *tserver, id ident.TabletID) error {
	m.catalog.mu.RLock()
	ti := m.catalog.tablets[id]
	req := &nyalav1.DeleteTabletRequest{DestServerId: string(ts.id), TabletId: string(id)}
	switch {
	case ti == nil: // I3: unknown
	case ti.deleted():
		req.Reason = "its table was deleted, or its range dropped"
	case ti.stale[ts.id] != 0:
		req.ReplicaId, req.Reason = uint64(ti.stale[ts.id]), "it was removed from the tablet's group"
	}
	m.catalog.mu.RUnlock()
	if req.GetReason() == "" {
		return nil // wanted after all, or unknown
	}
	address := m.servers.address(ts.id, ti.replicaOn(ts.id).GetAddress())
	if err := m.calls.remove(ctx, address, req); err != nil && status.CodeOf(err) != status.TabletNotFound {
		return err
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	switch {
	case m.catalog.tablets[id] != ti:
	case req.GetReplicaId() != 0:
		if ti.stale[ts.id] == ident.ReplicaID(req.GetReplicaId()) {
			delete(ti.stale, ts.id)
		}
		if ti.deleted() {
			return status.New(status.ServiceUnavailable, "its table was deleted meanwhile: whatever replica is there is to go")
		}
	default:
		m.removedLocked(ti, ts.id)
	}
	return nil
}

// tabletServerCalls are the calls that a master makes.
type tabletServerCalls struct {
	dial func(address string) (grpc.ClientConnInterface, error)
}

func (c tabletServerCalls) create(ctx context.Context, address string, req *nyalav1.CreateTabletRequest) error {
	conn, err := c.dial(address)
	if err != nil {
		return err
	}
	_, err = nyalav1.NewTabletAdminServiceClient(conn).CreateTablet(ctx, req)
	return status.FromGRPC(err)
}

func (c tabletServerCalls) remove(ctx context.Context, address string, req *nyalav1.DeleteTabletRequest) error {
	conn, err := c.dial(address)
	if err != nil {
		return err
	}
	_, err = nyalav1.NewTabletAdminServiceClient(conn).DeleteTablet(ctx, req)
	return status.FromGRPC(err)
}
