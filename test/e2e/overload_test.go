package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/status"
)

// chain is a writer whose rows each name the one before: ids first+1, first+2 and so on, in batches.
type chain struct {
	first int64
	acked atomic.Int64 // rows, a multiple of chainBatch
}

const chainBatch = 5

func (w *chain) run(ctx context.Context, cl *client.Client, tbl *client.Table, stop <-chan struct{}) error {
	s := cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		for i := range int64(chainBatch) {
			id := w.first + w.acked.Load() + i + 1
			op := tbl.NewInsert()
			if err := set(op, id, id-1); err != nil {
				return err
			}
			if err := s.Apply(ctx, op); err != nil {
				return err
			}
		}
		if rowErrs, err := s.Flush(ctx); err != nil || len(rowErrs) > 0 {
			return fmt.Errorf("rows from %d: %v, %w", w.first+w.acked.Load(), rowErrs, err)
		}
		w.acked.Add(chainBatch)
	}
}

// TestChainsThroughFailover is the first half of trial T45: eight writers chain rows in one tablet while its leader is killed
// with -9 again and again. Walking each chain from its last acknowledged row reaches its start without a gap, no row is there
// that wasn't acknowledged, none twice, and batches are whole.
func TestChainsThroughFailover(t *testing.T) {
	const writers, kills = 8, 5
	c := newCluster(t, 3)
	cl := connect(t, c)
	s := state{t, c, cl, 3}
	tbl := s.create("chains", "id int64, before int64", "id")
	stop, failed := make(chan struct{}), make(chan error, writers)
	var chains []*chain
	for w := range int64(writers) {
		chain := &chain{first: w * 1e9}
		chains = append(chains, chain)
		go func() { failed <- chain.run(t.Context(), cl, tbl, stop) }()
	}
	end := sync.OnceValue(func() error {
		close(stop)
		var err error
		for range writers {
			err = errors.Join(err, <-failed)
		}
		return err
	})
	defer func() { _ = end() }() // where the test fails before it stops them itself
	goOn := func() {
		t.Helper()
		var before []int64
		for _, w := range chains {
			before = append(before, w.acked.Load())
		}
		until(t, 30*time.Second, "every writer goes on", func() bool {
			for i, w := range chains {
				if w.acked.Load() < before[i]+4*chainBatch {
					return false
				}
			}
			return true
		})
	}
	for range kills {
		goOn()
		leader := leaderOf(t, c, cl, tbl)
		if err := c.Kill(leader.Name); err != nil {
			t.Fatal(err)
		}
		goOn()
		if err := c.Start(t.Context(), leader.Name); err != nil {
			t.Fatal(err)
		}
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	before := map[int64]int64{}
	sc, err := tbl.Scan(t.Context(), client.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	for {
		b, err := sc.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ids, befores := b.Record.Column(0).(*array.Int64), b.Record.Column(1).(*array.Int64)
		for i := range b.Rows {
			if _, twice := before[ids.Value(i)]; twice {
				t.Errorf("row %d is there twice", ids.Value(i))
			}
			before[ids.Value(i)] = befores.Value(i)
		}
		b.Release()
	}
	total := 0
	for _, w := range chains {
		n := w.acked.Load()
		total += int(n)
		steps := int64(0)
		for id := w.first + n; id != w.first; steps++ {
			next, ok := before[id]
			if !ok || next != id-1 {
				t.Fatalf("the chain from %d ends after %d of %d rows at %d", w.first+n, steps, n, id)
			}
			id = next
		}
	}
	// Every writer ended with an answer: there is no batch whose fate is open.
	if len(before) != total {
		t.Errorf("%d rows, %d were acknowledged", len(before), total)
	}
	t.Logf("%d rows", total)
}

// leaderOf returns the server that leads the table's only tablet.
func leaderOf(t *testing.T, c *localcluster.Cluster, cl *client.Client, tbl *client.Table) (leader localcluster.Server) {
	t.Helper()
	until(t, 20*time.Second, "the tablet has a leader", func() bool {
		tablets, err := cl.Tablets(t.Context(), tbl)
		if err != nil {
			t.Fatal(err)
		}
		r, ok := tablets[0].Leader()
		if !ok {
			return false
		}
		for _, s := range tabletServers(t, c) {
			if s.RPC == r.Address {
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}

// TestOverload is the second half of trial T45: while each sync of the leader's log takes 500 ms longer, 64 writers with a
// patience of 1 s each ask more of it than its places and its queue hold. Those turned away are told so, those that waited too
// long are dropped before they begin, both are counted, heartbeats and votes don't wait behind them, and once the disk is fast
// again writes are within 5 s as fast as before.
func TestOverload(t *testing.T) {
	const writers = 64
	c := newCluster(t, 3, "--rpc_num_service_threads=8", "--rpc_service_queue_length=24", "--unlock_unsafe_flags")
	cl := connect(t, c)
	s := state{t, c, cl, 3}
	tbl := s.create("rows", "id int64", "id")
	s.insert(tbl, int64(1e12))
	leader := leaderOf(t, c, cl, tbl)
	tablets, err := cl.Tablets(t.Context(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	var acked, busy, late, other atomic.Int64
	var unlike atomic.Pointer[error]
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ids := atomic.Int64{}
	for range writers {
		service := nyalav1.NewTabletServiceClient(dialServer(t, leader.RPC))
		wg.Go(func() {
			for ctx.Err() == nil {
				row := binary.LittleEndian.AppendUint64([]byte{1, 1}, uint64(ids.Add(1))) // INSERT, the column set
				call, done := context.WithTimeout(ctx, time.Second)
				_, err := service.Write(call, &nyalav1.WriteRequest{TabletId: tablets[0].ID, RowOperations: &nyalav1.RowOperations{Rows: row}})
				done()
				err = status.FromGRPC(err)
				var e *status.Error
				switch status.CodeOf(err) {
				case status.OK:
					acked.Add(1)
				case status.TooBusy:
					busy.Add(1)
					if !errors.As(err, &e) || e.RetryAfter <= 0 {
						unlike.Store(&err)
						return
					}
					select { // as the client does
					case <-time.After(e.RetryAfter):
					case <-ctx.Done():
					}
				case status.TimedOut:
					late.Add(1)
				default:
					if ctx.Err() == nil {
						other.Add(1)
						unlike.Store(&err)
						return
					}
				}
			}
		})
	}
	// rate is how many writes are acknowledged in a while.
	rate := func() int64 {
		before := acked.Load()
		pause(t, 500*time.Millisecond)
		return acked.Load() - before
	}
	until(t, 20*time.Second, "writers are under way", func() bool { return acked.Load() > 200 })
	full := rate()
	overflows := func() float64 { return metric(t, leader, "rpcs_queue_overflow", "TabletService") }
	dropped := func() float64 { return metric(t, leader, "rpcs_timed_out_in_queue", "TabletService") }
	o, d := overflows(), dropped()
	slowLog(t, leader, 500*time.Millisecond)
	until(t, 30*time.Second, "writes are turned away and dropped", func() bool {
		return busy.Load() > 20 && late.Load() > 20 && overflows() > o+20 && dropped() > d
	})
	if now := leaderOf(t, c, cl, tbl); now.Name != leader.Name {
		t.Errorf("%s leads, %s did before the overload", now.Name, leader.Name)
	}
	slowLog(t, leader, 0)
	lifted := time.Now()
	until(t, 5*time.Second, "writes are as fast as before", func() bool { return rate() > full/2 })
	t.Logf("%d writes in half a second before; half of that again %v after the delay was lifted; %d acknowledged, %d turned away, %d late",
		full, time.Since(lifted).Round(10*time.Millisecond), acked.Load(), busy.Load(), late.Load())
	cancel()
	wg.Wait()
	if err := unlike.Load(); err != nil {
		t.Errorf("%d writers got: %v", other.Load(), *err)
	}
	// Each row is there once (it would be an error otherwise), and all that were acknowledged are.
	n, err := tbl.Count(t.Context(), client.ScanOptions{})
	if err != nil || int64(n) < acked.Load()+1 || int64(n) > acked.Load()+late.Load()+writers+1 {
		t.Errorf("%d rows, %d acknowledged, %d late, %v", n, acked.Load(), late.Load(), err)
	}
}
