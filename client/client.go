package client

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// Client is a connection to one cluster. It is safe for concurrent use, and meant to be shared: what it learns about
// tablets' locations serves all who use it.
type Client struct {
	opts     Options
	logger   *slog.Logger
	conns    *conns
	masters  masters
	requests *requests
	latest   atomic.Uint64 // the highest timestamp that a server has told us
	local    map[string]bool

	mu        sync.Mutex
	isDone    bool
	locations map[string]*locations // by table id

	// life ends with Close. It bounds what runs for all callers or for none, and so can't be bounded by a caller's context.
	life       context.Context
	end        context.CancelFunc
	goroutines sync.WaitGroup
}

// Connect finds the cluster's leading master and learns the cluster's id. It tries until ctx ends, or Options.Timeout is
// over where ctx has no deadline. ctx bounds Connect alone; the client lives until Close.
func Connect(ctx context.Context, o Options) (*Client, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	c := &Client{
		opts:      o,
		logger:    o.Logger,
		conns:     newConns(o),
		requests:  newRequests(),
		local:     localAddresses(),
		locations: make(map[string]*locations),
	}
	c.life, c.end = context.WithCancel(context.WithoutCancel(ctx))
	c.masters.addrs = o.Masters
	if err := c.connect(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends all connections, waits for what the client runs in the background, and makes everything else fail with
// ErrClosed. What a Session still buffers is lost.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.isDone {
		c.mu.Unlock()
		return nil
	}
	c.isDone = true
	c.mu.Unlock()
	c.end()
	err := c.conns.close()
	c.goroutines.Wait()
	return err
}

// ClusterID returns the id of the cluster, 32 hexadecimal digits.
func (c *Client) ClusterID() string { return *c.conns.clusterID.Load() }

// LatestTimestamp returns the highest timestamp that any server has told this client: that of its last write, or of what it
// read. It goes with each later request, so that no server's clock is behind what the client has seen.
func (c *Client) LatestTimestamp() Timestamp { return Timestamp(c.latest.Load()) }

// ObserveTimestamp makes the client's later requests come after ts: a timestamp that another client passed on.
func (c *Client) ObserveTimestamp(ts Timestamp) {
	for {
		old := c.latest.Load()
		if uint64(ts) <= old || c.latest.CompareAndSwap(old, uint64(ts)) {
			return
		}
	}
}

// Timestamp is a hybrid timestamp: microseconds since the epoch << 12 | logical part.
type Timestamp = hybridtime.Timestamp

// goroutine runs fn in the background unless the client is closed; Close waits for it.
func (c *Client) goroutine(fn func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isDone {
		return false
	}
	c.goroutines.Go(fn)
	return true
}

func (c *Client) isClosed() bool { return c.life.Err() != nil }

// localAddresses are the addresses that mean this machine, for choosing the closest replica.
func localAddresses() map[string]bool {
	local := map[string]bool{"localhost": true}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return local // only the choice of the closest replica suffers
	}
	for _, a := range addrs {
		if ipnet, ok := a.(*net.IPNet); ok {
			local[ipnet.IP.String()] = true
		}
	}
	return local
}

// isLocal says whether a server's address is on this machine.
func (c *Client) isLocal(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && c.local[host]
}
