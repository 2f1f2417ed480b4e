package consensus_test

import "github.com/nyaladb/nyala/internal/ident"

// Servers that crash and replicas that start anew in the simulated cluster.

// crash stops a server at once. Its disk keeps what was committed, its stores what was flushed.
func (w *world) crash(s *simServer) {
	s.up, s.paused = false, false
	s.core, s.appends, s.applies = nil, nil, nil
	s.log = s.log.Crash()
	s.restarts++
	for _, st := range s.stores {
		st.entries = st.entries[:st.durable]
	}
	for id, a := range w.pending {
		if a.server == s.id {
			delete(w.pending, id)
		}
	}
}

// restartReplica stops a replica and starts it again while its server goes on, as the host does: with nothing under way.
func (w *world) restartReplica(s *simServer, t ident.TabletID) {
	if !s.up || s.paused || s.noSpace || s.stalled || s.stores[t] == nil {
		return
	}
	if w.stopReplica(s, t) {
		w.trace.add("restart replica s%d %s", s.id, short(t))
		w.startGroup(s, t)
		w.take(s)
	}
}

// stopReplica stops a replica, and has nothing of it under way any more; it says whether its server is still up.
func (w *world) stopReplica(s *simServer, t ident.TabletID) bool {
	w.stall(s, false) // it waits for the log
	for len(s.appends) > 0 && s.up {
		w.commit(s)
	}
	if !s.up {
		return false
	}
	s.core.StopGroup(t)
	delete(s.views, t)
	w.take(s)
	kept := s.applies[:0]
	for _, a := range s.applies {
		if a.Tablet != t {
			kept = append(kept, a)
		}
	}
	s.applies = kept
	for len(s.appends) > 0 && s.up {
		w.commit(s)
	}
	return s.up
}
