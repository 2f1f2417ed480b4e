package rpc

import (
	"cmp"
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	grpcpeer "google.golang.org/grpc/peer"
)

// MethodCalls is what Server.Calls says of one method.
type MethodCalls struct {
	Method   string
	Stream   bool
	UnderWay []CallUnderWay // the oldest first
	// Slow holds the last call of each kind of slowness that occurred, the fastest kind first; none of streams, which last.
	Slow []SlowCalls
}

// CallUnderWay is a call that hasn't been answered.
type CallUnderWay struct {
	From    string // the caller's address
	Since   time.Time
	Waits   bool      // for a place among those worked on (--rpc_num_service_threads)
	Expires time.Time // the caller's deadline; zero: it has none
}

// SlowCalls are the calls of one method that took AtLeast, and less than the next kind's.
type SlowCalls struct {
	AtLeast time.Duration
	Count   uint64 // since the start
	Last    SlowCall
}

// SlowCall is a call that was answered.
type SlowCall struct {
	From   string
	Since  time.Time
	Waited time.Duration // before it was worked on
	Took   time.Duration // Waited included
	Error  string        // empty: none
}

// slowKinds are Kudu's kinds of slowness.
var slowKinds = [...]time.Duration{10 * time.Millisecond, 100 * time.Millisecond, time.Second}

// methodCalls follows the calls of one method. A call costs two locks that nobody holds for long, and a slow one its words.
type methodCalls struct {
	method string
	stream bool

	mu    sync.Mutex
	first *call // of a list, the youngest first
	slow  [len(slowKinds)]SlowCalls
}

// call is one call under way.
type call struct {
	of         *methodCalls
	prev, next *call // guarded by of.mu
	from       net.Addr
	start      time.Time
	expires    time.Time
	waited     atomic.Int64 // nanoseconds until it was worked on; -1: it waits
}

func (m *methodCalls) begin(ctx context.Context, start time.Time) *call {
	c := &call{of: m, start: start}
	c.waited.Store(-1)
	if p, ok := grpcpeer.FromContext(ctx); ok {
		c.from = p.Addr
	}
	c.expires, _ = ctx.Deadline()
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.next = m.first; c.next != nil {
		c.next.prev = c
	}
	m.first = c
	return c
}

// worked says that the call has its place.
func (c *call) worked() { c.waited.Store(int64(time.Since(c.start))) }

// end takes the call off and returns what it took.
func (c *call) end(err error) (took time.Duration) {
	m := c.of
	took = time.Since(c.start)
	kind := -1
	for kind+1 < len(slowKinds) && took >= slowKinds[kind+1] && !m.stream {
		kind++
	}
	var last SlowCall
	if kind >= 0 {
		last = SlowCall{From: c.address(), Since: c.start, Waited: took, Took: took}
		if w := c.waited.Load(); w >= 0 {
			last.Waited = time.Duration(w)
		}
		if err != nil {
			last.Error = err.Error()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		m.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	}
	if kind >= 0 {
		m.slow[kind].Count++
		m.slow[kind].Last = last
	}
	return took
}

func (c *call) address() string {
	if c.from == nil {
		return ""
	}
	return c.from.String()
}

func (m *methodCalls) describe() MethodCalls {
	out := MethodCalls{Method: m.method, Stream: m.stream}
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := m.first; c != nil; c = c.next {
		out.UnderWay = append(out.UnderWay, CallUnderWay{From: c.address(), Since: c.start, Waits: c.waited.Load() < 0, Expires: c.expires})
	}
	slices.Reverse(out.UnderWay)
	for i, s := range m.slow {
		if s.AtLeast = slowKinds[i]; s.Count > 0 {
			out.Slow = append(out.Slow, s)
		}
	}
	return out
}

// followCalls returns what follows a method's calls from now on.
func (s *Server) followCalls(method string, stream bool) *methodCalls {
	m := &methodCalls{method: method, stream: stream}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, m)
	return m
}

// Calls lists the methods, by name, with their calls under way and the last slow ones.
func (s *Server) Calls() []MethodCalls {
	s.mu.Lock()
	all := slices.Clone(s.calls)
	s.mu.Unlock()
	out := make([]MethodCalls, len(all))
	for i, m := range all {
		out[i] = m.describe()
	}
	slices.SortFunc(out, func(a, b MethodCalls) int { return cmp.Compare(a.Method, b.Method) })
	return out
}
