package master

import (
	"context"
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

// startReconciling lets each tablet server be told what it has to do, from now on until ctx ends.
func (m *Master) startReconciling(ctx context.Context, eg *errgroup.Group) {
	eg.Go(func() error { return m.purgeDeleted(ctx) })
	m.reconcile.mu.Lock()
	defer m.reconcile.mu.Unlock()
	m.reconcile.run = func(ts *tserver) {
		eg.Go(func() error { return m.converse(ctx, ts) })
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
			if len(create)+len(remove) == 0 {
				break
			}
			if !m.runTasks(ctx, ts, create, remove) {
				// Unreachable or busy: its next heartbeat wakes this conversation, at the latest.
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(taskRetry):
				}
				break
			}
		}
	}
}

// runTasks makes the calls and says whether all went well.
func (m *Master) runTasks(ctx context.Context, ts *tserver, create, remove []ident.TabletID) bool {
	ctx, cancel := context.WithTimeout(ctx, taskTimeout)
	defer cancel()
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		bad bool
	)
	one := func(tablet ident.TabletID, isCreate bool, call func(context.Context, ident.TabletID) error) {
		wg.Go(func() {
			err := call(ctx, tablet)
			if err == nil {
				m.servers.told(ts, tablet, isCreate)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if !bad {
				m.cfg.Logger.Warn("tablet server didn't do what it was told; trying again", "server", string(ts.id),
					"tablet_id", string(tablet), "create", isCreate, "err", err)
			}
			bad = true
		})
	}
	for _, id := range create {
		one(id, true, func(ctx context.Context, id ident.TabletID) error { return m.createOn(ctx, ts, id) })
	}
	for _, id := range remove {
		one(id, false, func(ctx context.Context, id ident.TabletID) error { return m.removeFrom(ctx, ts, id) })
	}
	wg.Wait()
	return !bad
}

func (m *Master) createOn(ctx context.Context, ts *tserver, id ident.TabletID) error {
	m.catalog.mu.RLock()
	ti := m.catalog.tablets[id]
	if ti == nil || ti.table.deleted() || ti.replicaOn(ts.id) == nil {
		m.catalog.mu.RUnlock()
		return nil // no longer wanted
	}
	req := &nyalav1.CreateTabletRequest{
		DestServerId:    string(ts.id),
		TabletId:        string(id),
		TableId:         string(ti.table.id),
		TableName:       ti.table.meta.GetName(),
		Schema:          ti.table.meta.GetSchema(),
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
	wanted := ti != nil && !ti.table.deleted()
	m.catalog.mu.RUnlock()
	address := m.servers.address(ts.id, "")
	if wanted || address == "" {
		return nil
	}
	err := m.calls.remove(ctx, address, &nyalav1.DeleteTabletRequest{
		DestServerId: string(ts.id), TabletId: string(id), Reason: "its table was deleted",
	})
	if err != nil && status.CodeOf(err) != status.TabletNotFound {
		return err
	}
	m.catalog.mu.Lock()
	defer m.catalog.mu.Unlock()
	if ti != nil && m.catalog.tablets[id] == ti {
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
