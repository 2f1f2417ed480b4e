package rpc

import (
	"sync"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// peer is another server as this one knows it.
type peer struct {
	t     *PeerTransport
	id    ident.ServerID
	dials bool // this server dials it: the lower id does (I4)
	links [len(channels)]*link

	mu sync.Mutex
	// told is the address that Send's caller last gave, heard the one of the peer's own last hello. The newer of the two is
	// tried first, then the other: a config may be older than a hello, and a hello older than a config.
	told, heard string
	useTold     bool
	wasHeard    bool
	incarnation uint64
	lastError   string
}

func newPeer(t *PeerTransport, id ident.ServerID) *peer {
	p := &peer{t: t, id: id, dials: t.cfg.ServerID < id}
	for i, ch := range channels {
		p.links[i] = newLink(p, ch)
	}
	return p
}

func (p *peer) link(ch nyalav1.PeerChannel) *link {
	i := int(ch) - int(Control)
	invariant.Check(i >= 0 && i < len(p.links), "no peer channel %d", ch)
	return p.links[i]
}

// learn takes over an address from the caller of Send; one that it didn't give before is tried at once.
func (p *peer) learn(address string) {
	if address == "" {
		return
	}
	p.mu.Lock()
	changed := address != p.told
	if changed {
		p.told, p.useTold = address, address != p.heard
	}
	p.mu.Unlock()
	if changed {
		p.retryNow()
	}
}

// hello takes over what a peer says of itself; when it wasn't there before, lost connections are tried again at once.
func (p *peer) hello(h *nyalav1.PeerHello) {
	p.mu.Lock()
	if h.GetAddress() != "" {
		p.heard, p.useTold = h.GetAddress(), false
	}
	restarted := p.wasHeard && p.incarnation != h.GetIncarnation()
	// Not at every hello: a stream that breaks right after it would be opened again without end.
	back := restarted || p.lastError != ""
	p.wasHeard, p.incarnation, p.lastError = true, h.GetIncarnation(), ""
	p.mu.Unlock()
	if restarted {
		p.t.log.Info("peer restarted", "peer", p.id, "address", h.GetAddress(), "incarnation", h.GetIncarnation())
	}
	if back {
		p.retryNow()
	}
}

// retryNow ends the backoff of all links.
func (p *peer) retryNow() {
	for _, l := range p.links {
		signal(l.retry)
	}
}

// address is where to try next; empty: unknown.
func (p *peer) address() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.useTold || p.heard == "" {
		return p.told
	}
	return p.heard
}

// failed notes a failed attempt at address and turns to the other one, if there is one. It returns whether the failure
// differs from the last, and so is worth a line in the log.
func (p *peer) failed(address string, err error) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.heard != "" && p.told != "" && p.heard != p.told {
		p.useTold = address != p.told
	}
	news = p.lastError == ""
	p.lastError = err.Error()
	return news
}

func (p *peer) status() PeerStatus {
	p.mu.Lock()
	st := PeerStatus{ServerID: p.id, Incarnation: p.incarnation, LastError: p.lastError}
	p.mu.Unlock()
	st.Address = p.address()
	for _, l := range p.links {
		l.mu.Lock()
		st.QueuedBytes += l.queued
		up := l.session != nil
		l.mu.Unlock()
		switch l.channel {
		case Control:
			st.Control = up
		case Data:
			st.Data = up
		default:
		}
	}
	return st
}
