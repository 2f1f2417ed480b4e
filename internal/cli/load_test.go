package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// count returns the number of rows of a fake table.
func (c *fakeCluster) count(table string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, t := range c.tables {
		if t.name == table {
			for _, tb := range t.tablets {
				n += len(tb.rows)
			}
		}
	}
	return n
}

func createTable(t *testing.T, c *fakeCluster) {
	t.Helper()
	_, errs, code := runCLI(t.Context(), c.master.addr, nil, "table", "create", "t", "--columns", "id int64, n int64 null",
		"--primary_key", "id", "--hash", "id:4")
	require.Zero(t, code, errs)
}

// TestLoadKeepsOrder shows I4: of rows with the same key the last one stays with upsert, and the first with insert, though
// four sessions write.
func TestLoadKeepsOrder(t *testing.T) {
	const rows, keys = 20000, 300
	var csv strings.Builder
	csv.WriteString("id,n\n")
	first, last := map[int]int{}, map[int]int{}
	for n := range rows {
		id := rand.IntN(keys)
		if _, ok := first[id]; !ok {
			first[id] = n
		}
		last[id] = n
		fmt.Fprintf(&csv, "%d,%d\n", id, n)
	}
	for op, want := range map[string]map[int]int{"insert": first, "upsert": last} {
		c := newFakeCluster(t, 3)
		createTable(t, c)
		_, errs, code := runCLI(t.Context(), c.master.addr, strings.NewReader(csv.String()), "table", "load", "t", "-", "--op", op)
		if op == "insert" {
			require.Equal(t, exitRejected, code, errs)
			require.Contains(t, errs, fmt.Sprintf("%s rejected (%s already present)", thousands(rows-keys), thousands(rows-keys)))
			require.Contains(t, errs, thousands(rows-keys-maxRejectedShown)+" more rows rejected that aren't shown")
		} else {
			require.Zero(t, code, errs)
		}
		out, _, code := runCLI(t.Context(), c.master.addr, nil, "table", "scan", "t", "--format", "csv")
		require.Zero(t, code)
		lines := strings.Split(strings.TrimSpace(out), "\n")[1:]
		require.Len(t, lines, keys)
		for _, l := range lines {
			var id, n int
			_, err := fmt.Sscanf(l, "%d,%d", &id, &n)
			require.NoError(t, err)
			require.Equal(t, want[id], n, "%s of key %d", op, id)
		}
	}
}

// waitFor polls until the condition holds; the test fails if it doesn't in good time.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, 10*time.Second, 5*time.Millisecond, what)
}

// syncBuffer is a buffer that may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestLoadAsItArrives shows that rows from standard input are written while it is still open, and that Ctrl-C then ends the
// load at once, with what was written and what to do.
func TestLoadAsItArrives(t *testing.T) {
	c := newFakeCluster(t, 3)
	createTable(t, c)
	r, w := io.Pipe()
	defer w.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	var errs syncBuffer
	code := make(chan int)
	go func() {
		code <- Run(ctx, []string{"--masters", c.master.addr, "table", "load", "t", "-", "--op", "upsert"}, Streams{In: r, Out: io.Discard, Err: &errs})
	}()
	_, err := w.Write([]byte("id,n\n1,1\n2,2\n"))
	require.NoError(t, err)
	waitFor(t, "two rows are written", func() bool { return c.count("t") == 2 })
	_, err = w.Write([]byte("3,3\n"))
	require.NoError(t, err)
	waitFor(t, "the third row is written", func() bool { return c.count("t") == 3 })
	interrupt()
	require.Equal(t, exitInterrupted, <-code)
	require.Contains(t, errs.String(), "loaded 3 rows into t")
	require.Contains(t, errs.String(), "loading the whole file again is safe")
	require.Contains(t, errs.String(), "interrupted")
}

// TestInterruptWaitsForBatches shows that a batch under way at Ctrl-C is waited for, so that the count is right.
func TestInterruptWaitsForBatches(t *testing.T) {
	c := newFakeCluster(t, 3)
	createTable(t, c)
	hold := make(chan struct{})
	c.mu.Lock()
	c.hold = hold
	c.mu.Unlock()
	r, w := io.Pipe()
	defer w.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	var errs syncBuffer
	code := make(chan int)
	go func() {
		code <- Run(ctx, []string{"--masters", c.master.addr, "table", "load", "t", "-", "--sessions", "1"}, Streams{In: r, Out: io.Discard, Err: &errs})
	}()
	go func() { _, _ = w.Write([]byte("id,n\n" + strings.Repeat("1,1\n", 1) + "2,2\n")) }()
	waitFor(t, "a write is held", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.held > 0
	})
	interrupt()
	close(hold)
	require.Equal(t, exitInterrupted, <-code)
	require.Equal(t, 2, c.count("t"))
	require.Contains(t, errs.String(), "loaded 2 rows into t")
	require.Contains(t, errs.String(), "--op upsert is safe")
}

// TestLoadStopsWithoutServers shows what a load says when the cluster goes away under it.
func TestLoadStopsWithoutServers(t *testing.T) {
	c := newFakeCluster(t, 3)
	createTable(t, c)
	for _, s := range c.servers {
		c.kill(s)
	}
	_, errs, code := runCLI(t.Context(), c.master.addr, strings.NewReader("id,n\n1,1\n2,2\n"), "table", "load", "t", "-", "--timeout", "0.3")
	require.Equal(t, exitFailed, code)
	require.Contains(t, errs, "loaded 0 rows into t")
	require.Contains(t, errs, "the load stopped: write to ")
}
