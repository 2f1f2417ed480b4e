package netproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
)

// Self is the name of the test's own process in Cut.
const Self = "self"

// Net is a network. Its methods are safe for concurrent use.
type Net struct {
	// processes returns the processes that take part, by pid.
	processes func() map[int]string

	mu      sync.Mutex
	doors   map[string]*door
	cut     map[way]bool
	changed chan struct{} // closed, and made anew, when cut changes
	closed  bool

	ctx   context.Context //nolint:containedctx // the network's life
	end   context.CancelFunc
	ended sync.WaitGroup
}

// way is one direction between two processes.
type way struct{ from, to string }

// door is where the network takes connections for a process.
type door struct {
	listener net.Listener
	target   string // guarded by Net.mu
}

// New returns a network without doors. processes tells which processes there are, by pid: it is asked at each connection.
func New(processes func() map[int]string) *Net {
	ctx, end := context.WithCancel(context.Background())
	return &Net{
		processes: processes, doors: map[string]*door{}, cut: map[way]bool{}, changed: make(chan struct{}), ctx: ctx, end: end,
	}
}

// Door returns the address that the named process is to advertise, which listens at target. It stays the same for a name.
func (n *Net) Door(name, target string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return "", errors.New("the network is closed")
	}
	if d := n.doors[name]; d != nil {
		d.target = target
		return d.listener.Addr().String(), nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("a door for %s: %w", name, err)
	}
	d := &door{listener: l, target: target}
	n.doors[name] = d
	n.ended.Go(func() { n.serve(name, d) })
	return l.Addr().String(), nil
}

// Cut cuts the way from one process to another: nothing that it sends arrives, whoever made the connection.
func (n *Net) Cut(from, to string) { n.set(func() { n.cut[way{from, to}] = true }) }

// Part cuts both ways between every one of the first and every one of the second.
func (n *Net) Part(some, others []string) {
	n.set(func() {
		for _, a := range some {
			for _, b := range others {
				n.cut[way{a, b}], n.cut[way{b, a}] = true, true
			}
		}
	})
}

// Heal opens all ways.
func (n *Net) Heal() { n.set(func() { clear(n.cut) }) }

func (n *Net) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
}

// Close closes all doors and connections and waits for their goroutines.
func (n *Net) Close() {
	n.mu.Lock()
	n.closed = true
	for _, d := range n.doors {
		_ = d.listener.Close()
	}
	n.mu.Unlock()
	n.end()
	n.ended.Wait()
}

func (n *Net) serve(name string, d *door) {
	for {
		c, err := d.listener.Accept()
		if err != nil {
			return
		}
		n.ended.Go(func() { n.pass(name, d, c) })
	}
}

// pass connects c to the process behind a door.
func (n *Net) pass(to string, d *door, c net.Conn) {
	defer c.Close()
	from := n.owner(c)
	if from == "" {
		return // it has gone
	}
	n.mu.Lock()
	target := d.target
	n.mu.Unlock()
	var dialer net.Dialer
	s, err := dialer.DialContext(n.ctx, "tcp", target)
	if err != nil {
		return
	}
	defer s.Close()
	ctx, cancel := context.WithCancel(n.ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = c.Close()
		_ = s.Close()
	})()
	var both sync.WaitGroup
	both.Go(func() { n.copy(ctx, cancel, way{from, to}, s, c) })
	both.Go(func() { n.copy(ctx, cancel, way{to, from}, c, s) })
	both.Wait()
}

// copy passes on what src sends while the way is open. At its end, of which the other side hears when the way is open, the
// connection ends.
func (n *Net) copy(ctx context.Context, cancel context.CancelFunc, w way, dst io.Writer, src io.Reader) {
	defer cancel()
	buf := make([]byte, 32<<10)
	for {
		got, err := src.Read(buf)
		if !n.await(ctx, w) {
			return
		}
		if got > 0 {
			if _, werr := dst.Write(buf[:got]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// await waits until a way is open; false: the connection has ended.
func (n *Net) await(ctx context.Context, w way) bool {
	for {
		n.mu.Lock()
		cut, changed := n.cut[w], n.changed
		n.mu.Unlock()
		if !cut {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}
