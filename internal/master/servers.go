package master

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// servers is what the leading master knows of tablet servers: where they are, when they were last heard, and what they have
// to be told. It is filled from heartbeats alone, so a new leader begins with none and asks each for a full report.
type servers struct {
	unresponsive time.Duration // a server not heard for longer isn't alive

	mu    sync.Mutex
	term  ident.Term // the leadership in which they were heard; 0: none
	began time.Time  // when it did
	byID  map[ident.ServerID]*tserver
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
	alter  map[ident.TabletID]struct{} // its leaders: until they have answered
	// created are replicas that it has said it made and that no report has named so far.
	created map[ident.TabletID]struct{}
	// lost are replicas that it had in this leadership and has no more, although the catalog has them: not made anew.
	lost map[ident.TabletID]struct{}
	wake chan struct{} // holds one token while there may be something to tell

	conversing bool        // guarded by reconcile.mu: a conversation with it is under way
	fault      status.Code // of the conversation: what was said last
}

func newServers(unresponsive time.Duration) *servers {
	return &servers{unresponsive: unresponsive, byID: map[ident.ServerID]*tserver{}}
}

// begin forgets everything: a leadership begins, or with term 0 one has ended.
func (s *servers) begin(term ident.Term) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.term, s.began = term, time.Now()
	clear(s.byID)
}

// heard is what a heartbeat tells.
type heard struct {
	leads     bool     // this master leads in the term in which the heartbeat was let in
	ts        *tserver // nil: nothing is to be learned from it
	isNew     bool
	take      bool // its report is the one that is due, or a full one
	needsFull bool // a full report is needed: the server is new, was restarted, or a report was lost on the way
}

// heartbeat takes in that a server was heard. A heartbeat that was overtaken by a later one, of the same start or of another,
// changes nothing.
func (s *servers) heartbeat(term ident.Term, req *nyalav1.TSHeartbeatRequest, now time.Time) (h heard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term != term || term == 0 {
		return heard{}
	}
	h.leads = true
	id := ident.ServerID(req.GetServerId())
	ts := s.byID[id]
	if ts == nil {
		h.isNew = true
		ts = &tserver{
			id: id, replicas: map[ident.TabletID]bool{}, incarnation: req.GetIncarnation(),
			create: map[ident.TabletID]struct{}{}, remove: map[ident.TabletID]struct{}{}, lost: map[ident.TabletID]struct{}{},
			created: map[ident.TabletID]struct{}{}, alter: map[ident.TabletID]struct{}{},
			wake: make(chan struct{}, 1),
		}
		s.byID[id] = ts
	}
	report := req.GetReport()
	switch {
	case req.GetIncarnation() < ts.incarnation:
		return h
	case req.GetIncarnation() > ts.incarnation:
		ts.incarnation, ts.reported, ts.sequence = req.GetIncarnation(), false, 0
		for id := range ts.created { // a report of this start that doesn't name them isn't older than they are
			ts.replicas[id] = false
		}
		clear(ts.created)
	case report != nil && ts.reported && report.GetSequence() < ts.sequence:
		return h
	}
	h.ts = ts
	if r := req.GetRegistration(); r != nil {
		ts.registration = r
	}
	ts.heard = now
	switch {
	case report.GetFull(), report != nil && ts.reported && report.GetSequence() == ts.sequence:
		h.take = true
		ts.reported, ts.sequence = true, report.GetSequence()+1
	case report != nil:
		ts.reported = false
	}
	h.needsFull = !ts.reported
	poke(ts.wake)
	return h
}

// report takes in what a server holds and returns the replicas that it held before and doesn't any more.
func (s *servers) report(ts *tserver, report *nyalav1.TabletReport) (gone []ident.TabletID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := ts.replicas
	if report.GetFull() {
		ts.replicas = make(map[ident.TabletID]bool, len(report.GetUpdated()))
	}
	for _, r := range report.GetUpdated() {
		id := ident.TabletID(r.GetTabletId())
		ts.replicas[id] = r.GetRole() == nyalav1.Role_ROLE_LEADER
		delete(ts.create, id)
		delete(ts.created, id)
		delete(ts.lost, id)
	}
	if report.GetFull() {
		for id := range before {
			if _, held := ts.replicas[id]; !held {
				gone = append(gone, id)
			}
		}
		return gone
	}
	for _, removed := range report.GetRemovedTabletIds() {
		id := ident.TabletID(removed)
		_, held := ts.replicas[id]
		_, created := ts.created[id]
		if held || created {
			gone = append(gone, id)
			delete(ts.replicas, id)
			delete(ts.created, id)
		}
	}
	return gone
}

// awaited says whether a server that hasn't been heard in this leadership may still be alive.
func (s *servers) awaited(id ident.ServerID, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id] == nil && now.Sub(s.began) < s.unresponsive
}

// lost notes that a server has lost a replica that it should have.
func (s *servers) lost(ts *tserver, tablet ident.TabletID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ts.lost[tablet] = struct{}{}
}

// lacks says whether a server that has reported never had a replica of a tablet, as far as is known here.
func (s *servers) lacks(ts *tserver, tablet ident.TabletID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, held := ts.replicas[tablet]
	_, created := ts.created[tablet]
	_, lost := ts.lost[tablet]
	return ts.reported && !held && !created && !lost
}

// all returns the servers heard, by id.
func (s *servers) all() []*tserver {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*tserver
	for _, id := range slices.Sorted(maps.Keys(s.byID)) {
		out = append(out, s.byID[id])
	}
	return out
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
		out = append(out, candidate{id: id, address: ts.registration.GetRpcAddresses()[0]})
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
	poke(ts.wake)
}

// tellAlter queues a tablet that a server leads and that is to be given its table's schema.
func (s *servers) tellAlter(id ident.ServerID, tablet ident.TabletID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ts := s.byID[id]; ts != nil {
		ts.alter[tablet] = struct{}{}
		poke(ts.wake)
	}
}

// alters takes at most n of the tablets out that a server is to be given the schema of.
func (s *servers) alters(ts *tserver, n int) []ident.TabletID {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := firstN(ts.alter, n)
	for _, id := range out {
		delete(ts.alter, id)
	}
	return out
}

// told drops a task that is done.
func (s *servers) told(ts *tserver, tablet ident.TabletID, create bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !create {
		delete(ts.remove, tablet)
		delete(ts.created, tablet)
		return
	}
	delete(ts.create, tablet)
	if _, held := ts.replicas[tablet]; !held {
		ts.created[tablet] = struct{}{}
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
