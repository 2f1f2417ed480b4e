package clock

import "github.com/nyaladb/nyala/internal/ident"

// SetPeers says how many other servers, masters included, will send beats. Without any (the start) the clock judges
// alone.
func (c *Clock) SetPeers(others int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peers.others = others
	c.lookLocked(false)
}

// Accept takes the wall clock as it is for right, because an operator says so: the fence opens, and what other servers say
// against it counts again only after they have once agreed.
func (c *Clock) Accept() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookLocked(true) // as it is now: what was seen last may have been set right since
	c.det.ShownRight()
	c.fence.accept()
	c.emit(event{kind: eventAccepted})
	c.lookLocked(true)
}

// Beat returns what to tell another server about this clock, as the message leaves.
func (c *Clock) Beat(to ident.ServerID) Beat {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, v := c.freshLocked()
	return c.peers.beat(to, now, now.Mono+v.slept, v)
}

// HearBeat takes over what another server told about its clock, as the message arrives.
func (c *Clock) HearBeat(from ident.ServerID, b Beat) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, v := c.freshLocked()
	c.peers.hear(from, b, now, now.Mono+v.slept)
	c.lookLocked(false)
}

// ForgetPeer drops a server that is no longer part of the cluster.
func (c *Clock) ForgetPeer(id ident.ServerID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.peers.rows, id)
}

// freshLocked returns a reading of this moment, good or bad, and a look that knows of any suspend before it.
func (c *Clock) freshLocked() (Pair, *view) {
	if p := c.src.Pair(); !c.view.Load().ok(p) {
		c.lookLocked(false)
	}
	return c.src.Pair(), c.view.Load()
}
