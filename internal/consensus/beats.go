package consensus

import (
	"sync"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// serversShell guards what is known of the other servers.
type serversShell struct {
	mu sync.Mutex
	s  *Servers
}

// StampBeat writes into a beat for a server what it is to know of this one. It costs the same whatever the number of groups.
func (h *Host) StampBeat(to ident.ServerID, b *nyalav1.Beat) {
	sum := h.coreCfg.Pairs.Leads(to)
	b.Incarnation, b.QuietCount, b.QuietHash = h.cfg.Incarnation, sum.Count, sum.Hash
	h.metrics.messagesServer[kindBeat].Inc()
}

// HearBeat takes another server's beat. It never blocks.
func (h *Host) HearBeat(from ident.ServerID, b *nyalav1.Beat) {
	theirs := QuietSum{Count: b.GetQuietCount(), Hash: b.GetQuietHash()}
	h.stepServers(func(s *Servers) { s.HearBeat(from, b.GetIncarnation(), theirs, h.coreCfg.Pairs.Follows(from)) })
}

// stepServers gives what is known of the servers an event and does what comes of it. News reach each worker in the order in which
// they came up, and before any message that this goroutine hands over after it.
func (h *Host) stepServers(event func(*Servers)) {
	h.servers.mu.Lock()
	defer h.servers.mu.Unlock()
	event(h.servers.s)
	d := h.servers.s.Take()
	for _, n := range d.News {
		h.everyWorker(func(c *Core) { c.HearOf(n) })
	}
	for _, l := range d.Compare {
		h.compare(l)
	}
	for _, r := range d.Lists {
		h.list(r)
	}
	for _, m := range d.Messages {
		h.metrics.messagesServer[serverMessageKind(m.Message)].Inc()
		h.deps.Transport.Send(m.To, "", Control, []*nyalav1.GroupMessage{{Kind: &nyalav1.GroupMessage_Server{Server: m.Message}}})
	}
}

// everyWorker has every worker do something with its Core.
func (h *Host) everyWorker(f func(*Core)) {
	for _, w := range h.workers {
		w.box.put(func(m *mail) { m.commands = append(m.commands, f) })
	}
}

// compare gives each worker a list with those of the groups in it that are its own. What no worker has is the first one's.
func (h *Host) compare(l QuietList) {
	parts := make(map[*worker][]*nyalav1.QuietGroup, len(h.workers))
	for _, g := range l.Groups {
		w := h.workers[0]
		if n := h.findID([16]byte(g.GetTabletId())); n != nil {
			w = n.worker
		}
		parts[w] = append(parts[w], g)
	}
	for _, w := range h.workers {
		part := QuietList{From: l.From, Groups: parts[w]}
		w.box.put(func(m *mail) { m.commands = append(m.commands, func(c *Core) { c.CompareQuiet(part) }) })
	}
}

// list gathers what the workers have quiet with another server, and sends it when the last one has said so.
func (h *Host) list(r ListRequest) {
	var mu sync.Mutex
	var all []*nyalav1.QuietGroup
	missing := len(h.workers)
	h.everyWorker(func(c *Core) {
		groups := c.QuietGroups(r.From)
		mu.Lock()
		all = append(all, groups...)
		missing--
		done := missing == 0
		mu.Unlock()
		if done {
			h.stepServers(func(s *Servers) { s.SendList(r, all) })
		}
	})
}

func serverMessageKind(m *nyalav1.ServerMessage) string {
	switch m.GetKind().(type) {
	case *nyalav1.ServerMessage_Question:
		return kindQuestion
	case *nyalav1.ServerMessage_Answer:
		return kindAnswer
	case *nyalav1.ServerMessage_ListRequest:
		return kindListRequest
	default:
		return kindList
	}
}
