package replica

import (
	"maps"
	"slices"
	"sync"

	"github.com/nyaladb/nyala/internal/ident"
)

// Changes gathers the tablets whose replicas changed since somebody last looked. It never holds more than one word per
// tablet.
type Changes struct {
	mu    sync.Mutex
	dirty map[ident.TabletID]struct{}
	wake  chan struct{} // holds one token while dirty may have something
}

// Wake has a token when there is something to Take.
func (c *Changes) Wake() <-chan struct{} { return c.wake }

// Take returns what changed, in order, and forgets it.
func (c *Changes) Take() []ident.TabletID {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.wake:
	default:
	}
	ids := slices.Sorted(maps.Keys(c.dirty))
	clear(c.dirty)
	return ids
}

// PutBack gives back what was taken and didn't reach its goal. It doesn't wake: the caller knows when it wants to try again.
func (c *Changes) PutBack(ids []ident.TabletID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		c.dirty[id] = struct{}{}
	}
}

func (c *Changes) add(id ident.TabletID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty[id] = struct{}{}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
