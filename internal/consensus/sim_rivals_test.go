package consensus_test

import (
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// rivals has two of three servers lead in turns, each with entries that nobody else holds, as in figure 8 of the Raft paper: the first one
// comes back, its old entries reach the third server, and at some moment the second one, whose last term is the later one, takes over. What
// a majority held of an old term alone may be overwritten then, so nobody may have been told that it is committed.
func (w *world) rivals(t ident.TabletID) {
	w.calm = true
	defer func() { w.calm = false }()
	w.trace.add("rivals for %s", t)
	w.connect(-1, false)
	for _, s := range w.servers { // which ends a full disk, a log that stands still, and a fence
		if s.up {
			w.crash(s)
		}
		w.boot(s)
		w.fence(s, false)
	}
	leads := func(not *simServer) (found *simServer) {
		w.settle(60, func() bool {
			for _, s := range w.servers {
				if s != not && s.up && s.status(t).Role == nyalav1.Role_ROLE_LEADER && s.status(t).Ready == (not == nil) {
					found = s
				}
			}
			return found != nil
		})
		return found
	}
	first := leads(nil)
	if first == nil || w.check.fault != "" {
		return // clocks, a full disk: not this time
	}
	w.connect(-1, true)
	for range 2 {
		w.ask(first, "propose", t, 0)
	}
	w.settle(1, func() bool { return false })
	w.connect(first.id, true)
	second := leads(first)
	if second == nil || w.check.fault != "" {
		return
	}
	w.settle(1, func() bool { return false })
	third := w.servers[3-first.id-second.id]
	w.connect(second.id, false)
	step := func() {
		s := []*simServer{first, third}[w.rng.IntN(2)]
		w.deliver()
		switch n := w.rng.IntN(20); {
		case n == 0:
			w.now += 50 * time.Millisecond
			w.tick(s)
		case n < 4:
			w.apply(s)
		default:
			w.commit(s)
		}
		w.flushHeartbeats(s)
	}
	for n := 0; n < 5000 && first.status(t).Role != nyalav1.Role_ROLE_LEADER && w.check.fault == ""; n++ {
		step()
	}
	knew, some := third.status(t).Commit, 1+w.rng.IntN(60)
	for n := 0; n < some && (third.status(t).Commit == knew || w.rng.IntN(4) > 0); n++ {
		step()
	}
	if w.rng.IntN(2) == 0 {
		w.trace.add("crash s%d", third.id)
		w.crash(third)
	}
	w.connect(first.id, false)
	leads(first)
}

// connect heals all but one server, which is cut off; with noData nothing gets through that goes on the data channel.
func (w *world) connect(cutOff int, noData bool) {
	clear(w.cut)
	clear(w.noData)
	for i := range w.servers {
		for k := range w.servers {
			w.cut[[2]int{i, k}] = i != k && (i == cutOff || k == cutOff)
			w.noData[[2]int{i, k}] = i != k && noData
		}
	}
	w.trace.add("cut %v, data %v", w.cut, w.noData)
}
