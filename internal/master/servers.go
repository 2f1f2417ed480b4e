package master

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// servers is what the leading master knows of tablet servers: where they are, when they were last heard, and what they have
// to be told. It is filled from heartbeats alone, so a new leader begins with none and asks each for a full report.
type servers struct {
	unresponsive time.Duration // a server not heard for longer isn't alive

	mu   sync.Mutex
	byID map[ident.ServerID]*tserver
}

type tserver struct {
	id           ident.ServerID
	incarnation  uint64
	registration *nyalav1.TSRegistration
	heard        time.Time
	reported     bool                    // a full report of this incarnation is in
	sequence     uint32                  // of the next report
	replicas     map[ident.TabletID]bool // reported; the value says whether it leads

	// What the server is to be told, until it has done it.
	create map[ident.TabletID]struct{}
	remove map[ident.TabletID]struct{}
	wake   chan struct{} // holds one token while there may be something to tell
}

func newServers(unresponsive time.Duration) *servers {
	return &servers{unresponsive: unresponsive, byID: map[ident.ServerID]*tserver{}}
}

func (s *servers) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.byID)
}

// heartbeat takes in that a server was heard. It says whether the server is new here, and whether it has to send a full
// report, because it is new, was restarted, or a report was lost on the way.
func (s *servers) heartbeat(req *nyalav1.TSHeartbeatRequest, now time.Time) (ts *tserver, isNew, needsFull bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := ident.ServerID(req.GetServerId())
	ts = s.byID[id]
	if ts == nil {
		isNew = true
		ts = &tserver{
			id: id, replicas: map[ident.TabletID]bool{},
			create: map[ident.TabletID]struct{}{}, remove: map[ident.TabletID]struct{}{}, wake: make(chan struct{}, 1),
		}
		s.byID[id] = ts
	}
	if ts.incarnation != req.GetIncarnation() {
		ts.incarnation, ts.reported = req.GetIncarnation(), false
	}
	if r := req.GetRegistration(); r != nil {
		ts.registration = r
	}
	ts.heard = now
	report := req.GetReport()
	switch {
	case report.GetFull():
		ts.reported, ts.sequence = true, report.GetSequence()+1
		clear(ts.replicas)
	case report != nil && report.GetSequence() != ts.sequence:
		ts.reported = false
	case report != nil:
		ts.sequence++
	}
	ts.poke()
	return ts, isNew, !ts.reported
}

func (ts *tserver) poke() {
	select {
	case ts.wake <- struct{}{}:
	default:
	}
}

// alive returns the servers heard lately, by id.
func (s *servers) alive(now time.Time) []candidate {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []candidate
	for _, id := range slices.Sorted(maps.Keys(s.byID)) {
		ts := s.byID[id]
		if !ts.aliveAt(now, s.unresponsive) || len(ts.registration.GetRpcAddresses()) == 0 {
			continue
		}
		out = append(out, candidate{id: id, address: ts.registration.GetRpcAddresses()[0], replicas: len(ts.replicas) + len(ts.create)})
	}
	return out
}

func (ts *tserver) aliveAt(now time.Time, unresponsive time.Duration) bool {
	return ts.registration != nil && now.Sub(ts.heard) <= unresponsive
}

// list describes all servers heard since this master began to lead, by address.
func (s *servers) list(now time.Time) []*nyalav1.TabletServerInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*nyalav1.TabletServerInfo, 0, len(s.byID))
	for _, ts := range s.byID {
		info := &nyalav1.TabletServerInfo{
			ServerId:         string(ts.id),
			RpcAddresses:     ts.registration.GetRpcAddresses(),
			WebAddresses:     ts.registration.GetWebAddresses(),
			Version:          ts.registration.GetVersion(),
			MsSinceHeartbeat: uint64(now.Sub(ts.heard).Milliseconds()),
			Alive:            ts.aliveAt(now, s.unresponsive),
			NumReplicas:      uint32(len(ts.replicas)),
			Incarnation:      ts.incarnation,
		}
		for _, leads := range ts.replicas {
			if leads {
				info.NumLeaders++
			}
		}
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b *nyalav1.TabletServerInfo) int {
		return cmp.Or(slices.Compare(a.GetRpcAddresses(), b.GetRpcAddresses()), cmp.Compare(a.GetServerId(), b.GetServerId()))
	})
	return out
}

// address returns where a server was last known to be, or fallback.
func (s *servers) address(id ident.ServerID, fallback string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ts := s.byID[id]; ts != nil && len(ts.registration.GetRpcAddresses()) > 0 {
		return ts.registration.GetRpcAddresses()[0]
	}
	return fallback
}

// tell queues the creation or the removal of a replica on a server. A server that was never heard is told when it first
// reports: what it lacks is found then.
func (s *servers) tell(id ident.ServerID, tablet ident.TabletID, create bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ts := s.byID[id]
	if ts == nil {
		return
	}
	if create {
		ts.create[tablet] = struct{}{}
	} else {
		delete(ts.create, tablet)
		ts.remove[tablet] = struct{}{}
	}
	ts.poke()
}

// setReplica takes in what a server reports of one tablet.
func (s *servers) setReplica(ts *tserver, tablet ident.TabletID, held, leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !held {
		delete(ts.replicas, tablet)
		return
	}
	ts.replicas[tablet] = leads
	delete(ts.create, tablet)
}

// holds says whether a server has reported a replica of a tablet.
func (s *servers) holds(ts *tserver, tablet ident.TabletID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := ts.replicas[tablet]
	return ok
}

// told drops a task that is done.
func (s *servers) told(ts *tserver, tablet ident.TabletID, create bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if create {
		delete(ts.create, tablet)
	} else {
		delete(ts.remove, tablet)
	}
}

// tasks returns at most n tablets whose replicas ts has to create, and to remove.
func (s *servers) tasks(ts *tserver, n int) (create, remove []ident.TabletID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return firstN(ts.create, n), firstN(ts.remove, n)
}

func firstN(set map[ident.TabletID]struct{}, n int) []ident.TabletID {
	var out []ident.TabletID
	for id := range set {
		if len(out) == n {
			break
		}
		out = append(out, id)
	}
	return out
}
