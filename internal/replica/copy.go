package replica

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/status"
)

// Tablet copies. A leader whose log doesn't reach a member, or that has a learner without a replica, has that member's server
// make one: it holds its log from now on and calls StartTabletCopy there. That server fetches one stream from the leader over a
// connection of its own, writes it under a new number, and installs the replica in one commit of its WAL. Whatever fails on the
// way leaves nothing behind (files, rows of a number that the WAL doesn't know), and the leader asks again as long as there is
// need.

// CopyConfig says how tablets are copied.
type CopyConfig struct {
	// AtOnce is how many copies may be coming in to this server at once, and how many may be going out.
	AtOnce int
	// ChunkBytes is about how much one message of a copy holds.
	ChunkBytes int
	// IdleTimeout ends a copy whose source says nothing for so long.
	IdleTimeout time.Duration
	// InjectLatency is waited after each message that comes in, for tests.
	InjectLatency time.Duration
}

// DefaultCopyConfig returns the defaults.
func DefaultCopyConfig() CopyConfig {
	return CopyConfig{AtOnce: 10, ChunkBytes: 256 << 10, IdleTimeout: 30 * time.Second}
}

// Validate returns all faults of c in one error.
func (c CopyConfig) Validate() error {
	var errs []error
	if c.AtOnce < 1 {
		errs = append(errs, fmt.Errorf("num_tablets_to_copy_simultaneously is %d: want at least 1", c.AtOnce))
	}
	if c.ChunkBytes < 1 || c.ChunkBytes > 16<<20 {
		errs = append(errs, fmt.Errorf("tablet_copy_transfer_chunk_size_bytes is %d: want 1 to 16777216 (16 MiB)", c.ChunkBytes))
	}
	if c.IdleTimeout <= 0 || c.InjectLatency < 0 {
		errs = append(errs, errors.New("the idle timeout of copies must be above zero, tablet_copy_download_file_inject_latency_ms not below"))
	}
	return errors.Join(errs...)
}

const (
	// copyTimeout bounds a whole copy, as the log is held for it.
	copyTimeout = 30 * time.Minute
	// maxAsked bounds the copies that this server's leaders wait for.
	maxAsked = 64
	// removeRetry is the pause before a removed replica's deletion is tried again that failed.
	removeRetry = time.Second
)

// copier copies a server's tablets: it has others make copies of what this server leads, sends what they fetch, and makes
// copies itself.
type copier struct {
	cfg     CopyConfig
	m       *Manager
	address string // of this server
	dial    func(address string) (grpc.ClientConnInterface, error)
	dialNew func(address string) (*grpc.ClientConn, error)
	steps   chan struct{} // a token for each step of a copy under way, coming or going
	metrics *copyMetrics
	faults  copyFaults
	wake    chan struct{} // holds one token while there may be needs or removals
	running sync.WaitGroup

	// mu guards what follows.
	mu       sync.Mutex
	stopped  bool
	needs    map[copyKey]copyNeed
	asked    map[copyKey]struct{} // under way
	removals map[ident.TabletID]ident.ReplicaID
	incoming map[ident.TabletID]*incomingCopy
	outgoing int
}

// copyFaults are what tests put in the way. Each is nil otherwise.
type copyFaults struct {
	// send may change a message or fail before it is sent; step may fail before a step at the receiver.
	send func(*nyalav1.FetchTabletResponse) error
	step func(copyStep) error
}

// copyStep names a step at the receiver.
type copyStep string

const (
	stepHeader  copyStep = "header"  // it has the header, and nothing on disk
	stepChunk   copyStep = "chunk"   // some of the pairs are written
	stepFinish  copyStep = "finish"  // all of them are
	stepInstall copyStep = "install" // the store has the replica, the WAL doesn't know it
	stepJoin    copyStep = "join"    // the WAL knows it
)

func (f *copyFaults) before(s copyStep) error {
	if f.step == nil {
		return nil
	}
	return f.step(s)
}

// copyKey is a replica that is to be made.
type copyKey struct {
	tablet  ident.TabletID
	replica ident.ReplicaID
}

type copyNeed struct {
	server   ident.ServerID
	address  string
	minIndex ident.Index
}

// incomingCopy is a copy that is being made here.
type incomingCopy struct {
	copyKey
	cancel context.CancelFunc
	done   chan struct{}
	record atomic.Pointer[nyalav1.ReplicaRecord] // nil until the header is here
	bytes  atomic.Uint64
}

func newCopier(n *Node) (*copier, error) {
	if err := n.cfg.Copy.Validate(); err != nil {
		return nil, fmt.Errorf("tablet copies: %w", err)
	}
	c := &copier{
		cfg: n.cfg.Copy, m: n.Replicas, address: n.advertised[0], dial: n.Dial,
		dialNew: func(address string) (*grpc.ClientConn, error) {
			return rpc.Dial(address, rpc.DialOptions{MaxMessageSize: n.cfg.RPC.MaxMessageSize, ClusterID: n.ClusterID})
		},
		steps:    make(chan struct{}, runtime.GOMAXPROCS(0)),
		wake:     make(chan struct{}, 1),
		needs:    map[copyKey]copyNeed{},
		asked:    map[copyKey]struct{}{},
		removals: map[ident.TabletID]ident.ReplicaID{},
		incoming: map[ident.TabletID]*incomingCopy{},
	}
	var err error
	if c.metrics, err = newCopyMetrics(c, n.cfg.Registerer); err != nil {
		return nil, fmt.Errorf("tablet copies: metrics: %w", err)
	}
	return c, nil
}

// run does what consensus asks for until ctx ends, and returns when no copy is under way any more.
func (c *copier) run(ctx context.Context) error {
	defer c.running.Wait()
	defer c.stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
		for k, need := range c.takeNeeds() {
			c.running.Go(func() {
				defer c.answered(k)
				c.ask(ctx, k, need)
			})
		}
		for id, replica := range c.takeRemovals() {
			c.running.Go(func() { c.remove(ctx, id, replica) })
		}
	}
}

// stop ends the copies that come in and go out. Nothing begins after it.
func (c *copier) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	for _, in := range c.incoming {
		in.cancel()
	}
}

func (c *copier) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// need takes note that a member needs a copy. What isn't begun now is asked for again.
func (c *copier) need(k copyKey, need copyNeed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, under := c.asked[k]; under || len(c.asked)+len(c.needs) >= maxAsked {
		return
	}
	c.needs[k] = need
	c.poke()
}

func (c *copier) takeNeeds() map[copyKey]copyNeed {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.needs
	c.needs = map[copyKey]copyNeed{}
	for k := range out {
		c.asked[k] = struct{}{}
	}
	return out
}

func (c *copier) answered(k copyKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.asked, k)
}

// removed takes note that a replica here is no member any more. There is one per tablet at most.
func (c *copier) removed(id ident.TabletID, replica ident.ReplicaID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removals[id] = max(c.removals[id], replica)
	c.poke()
}

func (c *copier) takeRemovals() map[ident.TabletID]ident.ReplicaID {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.removals
	c.removals = map[ident.TabletID]ident.ReplicaID{}
	return out
}

// remove deletes a replica that is no member any more.
func (c *copier) remove(ctx context.Context, id ident.TabletID, replica ident.ReplicaID) {
	for {
		err := c.m.DeleteReplica(ctx, id, replica)
		if err == nil || ctx.Err() != nil {
			return
		}
		c.m.cfg.Logger.Error("a replica that was removed from its group can't be deleted yet; trying on", "tablet_id", string(id), "err", err)
		if !sleep(ctx, removeRetry) {
			return
		}
	}
}

// ask has another server make a copy of what this one leads, and waits for it.
func (c *copier) ask(ctx context.Context, k copyKey, need copyNeed) {
	ctx, cancel := context.WithTimeout(ctx, copyTimeout)
	defer cancel()
	log := c.m.cfg.Logger.With("tablet_id", string(k.tablet), "replica", uint64(k.replica), "server", string(need.server))
	began := time.Now()
	at, err := c.askFor(ctx, k, need)
	switch {
	case err == nil:
		log.Info("a member was brought up by a copy", "entry", at.String(), "took", time.Since(began).Round(time.Millisecond))
	case ctx.Err() == nil:
		log.Warn("a copy for a member failed; tried again as long as it needs one", "err", err)
	}
}

func (c *copier) askFor(ctx context.Context, k copyKey, need copyNeed) (ident.OpID, error) {
	r, err := c.m.lookup(k.tablet)
	if err != nil {
		return ident.OpID{}, err
	}
	t, err := r.Tablet()
	if err != nil {
		return ident.OpID{}, err
	}
	// The copy is of this state or a later one: from here on the log brings it up.
	index, _ := t.Applied()
	release, err := c.m.host.HoldLog(ctx, k.tablet, k.replica, index)
	if err != nil {
		return ident.OpID{}, fmt.Errorf("hold the log: %w", err)
	}
	defer release()
	conn, err := c.dial(need.address)
	if err != nil {
		return ident.OpID{}, err
	}
	resp, err := nyalav1.NewTabletCopyServiceClient(conn).StartTabletCopy(ctx, &nyalav1.StartTabletCopyRequest{
		DestServerId: string(need.server), TabletId: string(k.tablet), ReplicaId: uint64(k.replica),
		SourceServerId: string(c.m.cfg.ServerID), SourceAddress: c.address, MinIndex: uint64(max(need.minIndex, index)),
	})
	return ident.OpID{Term: ident.Term(resp.GetOpId().GetTerm()), Index: ident.Index(resp.GetOpId().GetIndex())}, status.FromGRPC(err)
}

// step waits until one more step of a copy may have a processor; leave gives it back. So heartbeats and votes don't wait
// behind copies.
func (c *copier) step(ctx context.Context) (leave func(), err error) {
	select {
	case c.steps <- struct{}{}:
		return func() { <-c.steps }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// sleep waits for d; false: ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
