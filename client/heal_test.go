package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// one returns the one tablet of a table without hash partitions.
func oneTablet(name string, replicas int) CreateTableOptions {
	o := rowsTable(name, replicas)
	o.Hash = nil
	return o
}

func (c *fakeCluster) tabletOf(t *Table, i int) *fakeTablet { return c.tables[t.ID()].tablets[i] }

// change changes a tablet's state.
func (c *fakeCluster) change(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
}

// TestMovedLeader moves a tablet's leader between writes: named by a hint, not named, and with the master's list stale.
func TestMovedLeader(t *testing.T) {
	for _, mute := range []bool{false, true} {
		c := newFakeCluster(t, 1, 3)
		cl := c.connect(Options{})
		table := c.createTable(cl, oneTablet("t", 3))
		tb := c.tabletOf(table, 0)
		tb.mute = mute
		s := cl.NewSession(SessionOptions{})
		for i := range 12 {
			c.change(func() { tb.leader, tb.term = c.servers[i%3].id, tb.term+1 })
			before := c.callCount("TabletService/Write")
			if err := s.Apply(t.Context(), insert(table, i, "x")); err != nil {
				t.Fatal(err)
			}
			if n := c.callCount("TabletService/Write") - before; n > 3 || (!mute && n > 2) {
				t.Errorf("mute %v: %d tries", mute, n)
			}
			before = c.callCount("TabletService/Write")
			if err := s.Apply(t.Context(), insert(table, 100+i, "x")); err != nil {
				t.Fatal(err)
			}
			if n := c.callCount("TabletService/Write") - before; n != 1 {
				t.Errorf("mute %v: the second write took %d tries", mute, n)
			}
		}
	}
}

// TestElection leaves a tablet without a leader for a while, its old one dead: the write waits, and is there soon after the
// new one.
func TestElection(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 3))
	tb := c.tabletOf(table, 0)
	s := cl.NewSession(SessionOptions{})
	if err := s.Apply(t.Context(), insert(table, 0, "x")); err != nil {
		t.Fatal(err)
	}
	c.server(tb.leader).kill()
	c.change(func() { tb.leader = "" })
	var elected time.Time
	tries := 0
	c.setHook(func(call *fakeCall) error {
		if call.method == "TabletService/Write" && !call.after {
			c.change(func() {
				if tries++; tries == 12 {
					tb.leader, elected = tb.hosts[2], time.Now()
				}
			})
		}
		return nil
	})
	if err := s.Apply(t.Context(), insert(table, 1, "x")); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(elected); d > time.Second {
		t.Errorf("the write was there %v after the election", d)
	}
}

// TestMovedReplicas moves all replicas to servers that the client has never heard of in this table: TABLET_NOT_FOUND makes it
// ask the master again.
func TestMovedReplicas(t *testing.T) {
	c := newFakeCluster(t, 1, 6)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 3))
	tb := c.tabletOf(table, 0)
	s := cl.NewSession(SessionOptions{})
	if err := s.Apply(t.Context(), insert(table, 0, "x")); err != nil {
		t.Fatal(err)
	}
	c.change(func() {
		tb.hosts = []string{c.servers[3].id, c.servers[4].id, c.servers[5].id}
		tb.listed, tb.leader = tb.hosts, tb.hosts[1]
	})
	if err := s.Apply(t.Context(), insert(table, 1, "x")); err != nil {
		t.Fatal(err)
	}
	c.change(func() { // now only one is told by a hint
		tb.listed = tb.hosts
		tb.hosts, tb.leader, tb.term = append(tb.hosts, c.servers[0].id), c.servers[0].id, 9
	})
	before := c.callCount("MasterService/GetTableLocations")
	if err := s.Apply(t.Context(), insert(table, 2, "x")); err != nil {
		t.Fatal(err)
	}
	if n := c.callCount("MasterService/GetTableLocations") - before; n != 0 {
		t.Errorf("the master was asked %d times", n)
	}
}

// TestMasterDownWhileWriting kills the only master: writes and scans under way don't need it.
func TestMasterDownWhileWriting(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	s := cl.NewSession(SessionOptions{})
	if err := s.Apply(t.Context(), insert(table, 0, "x")); err != nil {
		t.Fatal(err)
	}
	c.masters[0].kill()
	for i := 1; i < 40; i++ {
		c.change(func() {
			for _, tb := range c.tablets {
				tb.leader, tb.term = tb.hosts[i%3], tb.term+1
			}
		})
		if err := s.Apply(t.Context(), insert(table, i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := table.Count(t.Context(), ScanOptions{}); n != 40 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
}

// TestSharedLookup has many goroutines ask for the same tablets at once: the master is asked once.
func TestSharedLookup(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := table.locations.locate(t.Context(), []byte{0, 0, 0, 2, 1}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := c.callCount("MasterService/GetTableLocations"); n != 1 {
		t.Errorf("the master was asked %d times", n)
	}
	if got := len(table.locations.known.Load().tablets); got != 4 {
		t.Errorf("%d tablets known: the neighbours come along", got)
	}
}

// TestLookupExpires gives locations a time to live that is over at once: each use asks again.
func TestLookupExpires(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	c.ttlMs = 1
	table := c.createTable(cl, rowsTable("t", 1))
	s := cl.NewSession(SessionOptions{})
	deadline := time.Now().Add(10 * time.Second)
	for i := 0; c.callCount("MasterService/GetTableLocations") < 3 && time.Now().Before(deadline); i++ {
		if err := s.Apply(t.Context(), insert(table, i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.callCount("MasterService/GetTableLocations"); n < 3 {
		t.Errorf("the master was asked %d times though the answers expired", n)
	}
}

// TestSilentServer has the leader take a write and say nothing: after the attempt's time another replica is asked, and the
// write is applied once.
func TestSilentServer(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{AttemptTimeout: 100 * time.Millisecond})
	table := c.createTable(cl, oneTablet("t", 3))
	tb := c.tabletOf(table, 0)
	first := tb.leader
	c.setHook(func(call *fakeCall) error {
		if call.method == "TabletService/Write" && call.after && call.server.id == first {
			c.change(func() { tb.leader = tb.hosts[1] })
			<-call.ctx.Done()
		}
		return nil
	})
	s := cl.NewSession(SessionOptions{})
	if err := s.Apply(t.Context(), insert(table, 1, "x")); err != nil {
		t.Fatal(err)
	}
	for _, n := range tb.applied {
		if n != 1 {
			t.Errorf("applied %d times", n)
		}
	}
}

// TestCutOffLeader has a leader that can't reach the others any more: it answers that it ran out of time. The client asks the
// others, who have a leader of their own.
func TestCutOffLeader(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 3))
	fill(t, table, 10)
	tb := c.tabletOf(table, 0)
	old := tb.leader
	c.change(func() { tb.leader, tb.term = tb.hosts[2], 5 })
	c.setHook(func(call *fakeCall) error {
		if call.server.id == old {
			return status.New(status.TimedOut, "the outcome of the write isn't known")
		}
		return nil
	})
	if err := cl.NewSession(SessionOptions{}).Apply(t.Context(), insert(table, 100, "x")); err != nil {
		t.Error(err)
	}
	c.change(func() { tb.leader, tb.term = tb.hosts[1], 6 })
	if n, err := table.Count(t.Context(), ScanOptions{}); n != 11 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
}

// TestBusyServer is told when to come back, and does.
func TestBusyServer(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 1))
	refused := time.Time{}
	c.setHook(func(call *fakeCall) error {
		if call.method == "TabletService/Write" && !call.after && refused.IsZero() {
			refused = time.Now()
			e := status.New(status.TooBusy, "queue is full")
			e.RetryAfter = 60 * time.Millisecond
			return e
		}
		return nil
	})
	if err := cl.NewSession(SessionOptions{}).Apply(t.Context(), insert(table, 1, "x")); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(refused); d < 60*time.Millisecond {
		t.Errorf("came back after %v", d)
	}
}

// TestExactlyOnce inserts rows from several sessions while answers get lost, leaders move and servers die and come back:
// no insert finds its own row already there, and each row is applied once.
func TestExactlyOnce(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{AttemptTimeout: time.Second})
	table := c.createTable(cl, rowsTable("t", 3))
	c.setHook(func(call *fakeCall) error {
		if call.method != "TabletService/Write" {
			return nil
		}
		switch n := rand.IntN(100); {
		case call.after && n < 25:
			return errLost
		case !call.after && n < 5:
			return status.New(status.ServiceUnavailable, "try again")
		case !call.after && n < 15:
			c.change(func() {
				for _, tb := range c.tablets {
					tb.leader, tb.term, tb.mute = tb.hosts[rand.IntN(3)], tb.term+1, rand.IntN(2) == 0
				}
			})
		}
		return nil
	})
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			s := c.servers[i%3]
			s.kill()
			s.start()
		}
	})
	var wg sync.WaitGroup
	const sessions, rows = 6, 150
	for g := range sessions {
		wg.Go(func() {
			s := cl.NewSession(SessionOptions{Flush: FlushMode(g % 2), BatchRows: 10})
			for i := range rows {
				if err := s.Apply(t.Context(), insert(table, g*1000+i, "x")); err != nil {
					t.Error(err)
				}
				if i%40 == 0 {
					if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil {
						t.Error(rows, err)
					}
				}
			}
			if rows, err := s.Close(t.Context()); len(rows) > 0 || err != nil {
				t.Error(rows, err)
			}
		})
	}
	wg.Wait()
	close(stop)
	killer.Wait()
	total := 0
	for _, tb := range c.tablets {
		for key, n := range tb.applied {
			if total++; n != 1 {
				t.Errorf("key %x was applied %d times", key, n)
			}
		}
	}
	if total != sessions*rows {
		t.Errorf("%d rows, want %d", total, sessions*rows)
	}
}

// TestRequestStale: a server that has forgotten the request can't say what became of it, and neither can the client.
func TestRequestStale(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 1))
	tries := 0
	c.setHook(func(call *fakeCall) error {
		w, ok := call.req.(*nyalav1.WriteRequest)
		if !ok || !call.after {
			return nil
		}
		tries++
		c.change(func() { // the server forgets the client
			tb := c.tablets[w.GetTabletId()]
			clear(tb.answers)
			tb.stale[string(w.GetRequestId().GetClientId())] = w.GetRequestId().GetSeqNo() + 1
		})
		return errLost
	})
	err := cl.NewSession(SessionOptions{}).Apply(t.Context(), insert(table, 1, "x"))
	if CodeOf(err) != CodeRequestStale || !OutcomeUnknown(err) || tries != 1 || !strings.Contains(err.Error(), "outcome unknown") {
		t.Errorf("apply: %v; %d tries", err, tries)
	}
}

// TestKnownOutcome: where no server can have taken the write, the client says so.
func TestKnownOutcome(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 1))
	c.setHook(func(call *fakeCall) error {
		if call.method == "TabletService/Write" {
			e := status.New(status.TooBusy, "queue is full")
			e.RetryAfter = time.Second // no try is under way when the deadline comes
			return e
		}
		return nil
	})
	var err error
	for d := 50 * time.Millisecond; d < 5*time.Second; d *= 2 {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		err = cl.NewSession(SessionOptions{}).Apply(ctx, insert(table, 1, "x"))
		cancel()
		if !strings.Contains(err.Error(), "context deadline exceeded") {
			break // on a busy machine the first try may be cut off itself
		}
	}
	var e *Error
	if CodeOf(err) != CodeTimedOut || !errors.As(err, &e) {
		t.Fatalf("apply: %v", err)
	}
	for _, want := range []string{"write to tablet ", `of table "t": timed out after`, "1 try at server ts-0", "queue is full"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q isn't in: %v", want, err)
		}
	}
	if OutcomeUnknown(err) {
		t.Errorf("every try was refused, yet: %v", err)
	}
}

// TestCommitWait and the propagated timestamp go with each write.
func TestPropagation(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, oneTablet("t", 1))
	var seen []*nyalav1.WriteRequest
	c.setHook(func(call *fakeCall) error {
		if w, ok := call.req.(*nyalav1.WriteRequest); ok && !call.after {
			seen = append(seen, w)
		}
		return nil
	})
	s := cl.NewSession(SessionOptions{CommitWait: true})
	for i := range 3 {
		if err := s.Apply(t.Context(), insert(table, i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if seen[0].GetPropagatedTimestamp() != 0 || seen[1].GetPropagatedTimestamp() == 0 ||
		seen[2].GetPropagatedTimestamp() <= seen[1].GetPropagatedTimestamp() {
		t.Error("timestamps don't rise with the writes")
	}
	for i, w := range seen {
		id := w.GetRequestId()
		if !w.GetCommitWait() || len(id.GetClientId()) != 16 || id.GetSeqNo() != uint64(i+1) || id.GetFirstIncompleteSeqNo() != id.GetSeqNo() {
			t.Errorf("request %d: %v", i, w)
		}
	}
	cl.ObserveTimestamp(cl.LatestTimestamp() + 5)
	cl.ObserveTimestamp(1)
	want := cl.LatestTimestamp()
	if err := s.Apply(t.Context(), insert(table, 9, "x")); err != nil || seen[3].GetPropagatedTimestamp() != uint64(want) {
		t.Errorf("propagated %d, want %d; %v", seen[3].GetPropagatedTimestamp(), want, err)
	}
}
