package client

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// TestBackgroundFlush applies rows and never flushes: they arrive all the same.
func TestBackgroundFlush(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	wrote := make(chan int, 100)
	c.setHook(func(call *fakeCall) error {
		if _, ok := call.req.(*nyalav1.WriteRequest); ok && call.after {
			wrote <- 1
		}
		return nil
	})
	s := cl.NewSession(SessionOptions{Flush: BackgroundFlush, FlushInterval: time.Millisecond})
	if err := s.Apply(t.Context(), insert(table, 1, "x")); err != nil {
		t.Fatal(err)
	}
	<-wrote
	// A full batch of one tablet doesn't wait for the interval.
	full := cl.NewSession(SessionOptions{Flush: BackgroundFlush, FlushInterval: time.Hour, BatchRows: 5})
	for i := range 40 {
		if err := full.Apply(t.Context(), insert(table, 100+i, "x")); err != nil {
			t.Fatal(err)
		}
	}
	<-wrote
	for _, s := range []*Session{s, full} {
		if rows, err := s.Close(t.Context()); len(rows) != 0 || err != nil {
			t.Errorf("close: %v, %v", rows, err)
		}
	}
	if n, err := table.Count(t.Context(), ScanOptions{}); n != 41 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
}

// TestBackgroundMemory holds the writes up: Apply waits at the bound until there is room, or its context ends.
func TestBackgroundMemory(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 1))
	gate := make(chan struct{})
	c.setHook(func(call *fakeCall) error {
		if _, ok := call.req.(*nyalav1.WriteRequest); ok && !call.after {
			<-gate
		}
		return nil
	})
	s := cl.NewSession(SessionOptions{Flush: BackgroundFlush, BufferBytes: 1000, FlushInterval: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	var applied atomic.Int64
	ended := make(chan error)
	go func() {
		for i := 0; ; i++ {
			if err := s.Apply(ctx, insert(table, i, "some text")); err != nil {
				ended <- err
				return
			}
			applied.Add(1)
		}
	}()
	// Nothing gets through, so the buffer fills up; then Apply is given up.
	for full := false; !full; {
		_, bytes := s.Buffered()
		full = bytes >= 1000
		if bytes > 1100 {
			t.Fatalf("%d bytes buffered", bytes)
		}
	}
	cancel()
	if err := <-ended; CodeOf(err) != CodeAborted && CodeOf(err) != CodeTimedOut {
		t.Errorf("an Apply that is given up: %v (%v)", err, CodeOf(err))
	}
	close(gate)
	n := int(applied.Load())
	for i := range 100 { // waits by itself where it must
		if err := s.Apply(t.Context(), insert(table, n+i, "some text")); err != nil {
			t.Fatal(err)
		}
		if _, bytes := s.Buffered(); bytes > 1100 {
			t.Fatalf("%d bytes buffered", bytes)
		}
	}
	if rows, err := s.Close(t.Context()); len(rows) != 0 || err != nil {
		t.Errorf("close: %v, %v", rows, err)
	}
	if got, err := table.Count(t.Context(), ScanOptions{}); int(got) != n+100 || err != nil {
		t.Errorf("count %d of %d, %v", got, n+100, err)
	}
}

// TestBackgroundErrors inserts each row twice: the errors come in the order of Apply, each once, and those beyond the bound are
// counted.
func TestBackgroundErrors(t *testing.T) {
	c := newFakeCluster(t, 1, 3)
	cl := c.connect(Options{})
	table := c.createTable(cl, rowsTable("t", 3))
	s := cl.NewSession(SessionOptions{Flush: BackgroundFlush, BatchRows: 7, FlushInterval: time.Hour, MaxErrors: 90})
	var want []uint64
	for i := range 100 {
		for range 2 {
			if err := s.Apply(t.Context(), insert(table, i, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		want = append(want, uint64(2*i+1))
	}
	seen := map[uint64]bool{}
	taken, dropped := s.PendingErrors()
	rows, err := s.Flush(t.Context())
	for _, list := range [][]RowError{taken, rows} {
		for i, r := range list {
			if r.Code != CodeAlreadyPresent || seen[r.Index] || r.Index%2 != 1 || i > 0 && r.Index < list[i-1].Index {
				t.Fatalf("error %d of %d: %v", i, len(list), &r)
			}
			seen[r.Index] = true
		}
	}
	if len(taken)+len(rows) > 180 || len(rows) > 90 || len(rows) == 0 {
		t.Errorf("%d and %d errors at a bound of 90", len(taken), len(rows))
	}
	if missing := len(want) - len(seen) - dropped; (missing > 0) != (err != nil) {
		t.Errorf("%d errors of %d are missing, %d were said to be dropped before; flush: %v", missing, len(want), dropped, err)
	}
	if rows, err := s.Close(t.Context()); len(rows) != 0 || err != nil {
		t.Errorf("the errors come again: %v, %v", rows, err)
	}
}

// TestConcurrentApplyAndFlush applies and flushes from several goroutines while locations are forgotten: no row is lost and none
// is written twice, in either mode that buffers.
func TestConcurrentApplyAndFlush(t *testing.T) {
	for _, mode := range []FlushMode{ManualFlush, BackgroundFlush} {
		t.Run(fmt.Sprint("mode=", int(mode)), func(t *testing.T) {
			c := newFakeCluster(t, 1, 3)
			cl := c.connect(Options{})
			table := c.createTable(cl, rowsTable("t", 3))
			s := cl.NewSession(SessionOptions{Flush: mode, BatchRows: 11, FlushInterval: time.Millisecond})
			var writers, flusher sync.WaitGroup
			stop := make(chan struct{})
			flusher.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if rows, err := s.Flush(t.Context()); len(rows) > 0 || err != nil {
						t.Errorf("flush: %v, %v", rows, err)
						return
					}
				}
			})
			for round := range 60 {
				// A table opened anew, whose tablets all writers have yet to look up, at the same time.
				fresh, err := cl.OpenTable(t.Context(), "t")
				if err != nil {
					t.Fatal(err)
				}
				for w := range 5 {
					writers.Go(func() {
						for i := range 4 {
							if err := s.Apply(t.Context(), insert(fresh, 100*round+10*w+i, "x")); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				writers.Wait()
			}
			close(stop)
			flusher.Wait()
			if rows, err := s.Close(t.Context()); len(rows) > 0 || err != nil {
				t.Errorf("close: %v, %v", rows, err)
			}
			if n, err := table.Count(t.Context(), ScanOptions{}); n != 1200 || err != nil {
				t.Errorf("count %d, %v", n, err)
			}
		})
	}
}
