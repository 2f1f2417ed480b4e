package consensus_test

import (
	"flag"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

var (
	simSeed    = flag.Uint64("sim.seed", 0, "run this seed alone, with its whole trace when it fails")
	simFrom    = flag.Uint64("sim.from", 1, "the first seed to run")
	simSeeds   = flag.Uint64("sim.seeds", 300, "how many seeds to run")
	simMembers = flag.Bool("sim.members", false, "let members come and go in every run, and not only in one of eight")
	simSteps   = flag.Int("sim.steps", 1200, "events in each run before everything heals")
)

// optionsOf derives a cluster's shape from its seed.
func optionsOf(seed uint64) worldOptions {
	o := worldOptions{seed: seed, servers: 3, tablets: 1 + int(seed%2), steps: *simSteps}
	switch seed % 16 {
	case 3, 11:
		o.servers = 5
	case 5:
		o.servers = 1
	case 7:
		o.servers, o.learner = 4, true
	case 9:
		o.servers, o.joint = 4, true
	case 13:
		o.noPreVote = true
	case 10, 14:
		o.servers, o.members = 5, 1+int(seed/16%3)
	}
	if *simMembers {
		return membersOptionsOf(seed)
	}
	o.clocks = seed/16%4 == 0 && o.members == 0
	o.noPush = seed%6 == 5
	o.batched = seed%4 != 1
	o.quiet, o.timers = seed%3 == 0, seed%15 == 0
	o.rivals = o.servers == 3 && o.members == 0 && !o.clocks && !o.quiet
	return o
}

// membersOptionsOf is the shape of a cluster whose members come and go.
func membersOptionsOf(seed uint64) worldOptions {
	return worldOptions{
		seed: seed, servers: 5, members: 1 + int(seed%3), tablets: 1 + int(seed%2), steps: *simSteps,
		batched: seed%4 != 1, quiet: seed%3 == 0, noPush: seed%6 == 5,
	}
}

// chaos takes one random step.
func (w *world) chaos() {
	s := w.servers[w.rng.IntN(len(w.servers))]
	t := w.tablets[w.rng.IntN(len(w.tablets))]
	if w.opts.quiet && w.chaosQuiet(s, t) {
		return
	}
	w.now += time.Duration(w.rng.IntN(600)) * time.Microsecond
	if w.opts.clocks && w.rng.IntN(100) < 4 {
		w.clocks(s)
		return
	}
	if w.opts.members > 0 && w.rng.IntN(100) < 12 {
		w.membersChaos(s, t)
		return
	}
	switch n := w.rng.IntN(1000); {
	case n < 430:
		w.deliver()
	case n < 590:
		if s.up {
			w.trace.add("tick s%d", s.id)
			w.tick(s)
		}
	case n < 730:
		w.commit(s)
	case n < 810:
		w.apply(s)
	case n < 880:
		w.ask(w.someLeader(t, s), "propose", t, 0)
	case n < 920:
		if w.rng.IntN(2) == 0 {
			s = w.someLeader(t, s)
		}
		w.ask(s, "close", t, w.someTimestamp())
	case n < 955:
		w.ask(w.someLeader(t, s), "read", t, 0)
	case n < 960:
		w.flush(s, t)
	case n < 974:
		w.ask(w.someLeader(t, s), "transfer", t, 0)
	case n < 978:
		if s.up {
			w.trace.add("crash s%d", s.id)
			w.crash(s)
		}
	case n < 985:
		w.cutSome(s, t)
	case n < 988:
		clear(w.cut)
		clear(w.noData)
		w.trace.add("network healed")
	case n < 991:
		s.clock.offset = time.Duration(w.rng.IntN(30_000)-10_000) * time.Millisecond
		if w.rng.IntN(3) > 0 {
			s.clock.offset = time.Duration(w.rng.IntN(200)-100) * time.Millisecond
		}
		w.trace.add("clock of s%d off by %s", s.id, s.clock.offset)
	case n < 993:
		s.clock.offset = 0
	case n < 995:
		if s.up {
			s.noSpace = !s.noSpace
			s.core.SetOutOfSpace(s.noSpace)
			w.trace.add("s%d out of space: %v", s.id, s.noSpace)
			w.take(s)
		}
	case n < 996:
		w.restartReplica(s, t)
	case n < 997:
		if s.up {
			s.log.FailNext([]wal.Failure{wal.FailSync, wal.FailSyncKept}[w.rng.IntN(2)])
		}
	case n < 999:
		w.fence(s, !s.fenced && w.rng.IntN(2) == 0)
	default:
		w.stall(s, !s.stalled)
	}
	for _, s := range w.servers {
		w.flushHeartbeats(s)
		if !s.up && w.rng.IntN(40) == 0 {
			w.trace.add("boot s%d", s.id)
			w.boot(s)
		}
	}
}

// cutSome cuts a server off, a leader most likely; or some links; or the data channel of some.
func (w *world) cutSome(s *simServer, t ident.TabletID) {
	links := w.cut
	if w.rng.IntN(3) == 0 {
		links = w.noData
	}
	clear(links)
	whole := w.rng.IntN(2) == 0
	s = w.someLeader(t, s)
	for i := range w.servers {
		for k := range w.servers {
			links[[2]int{i, k}] = i != k && (whole && (i == s.id || k == s.id) || !whole && w.rng.IntN(4) == 0)
		}
	}
	w.trace.add("cut %v, data %v", w.cut, w.noData)
}

// someLeader is mostly a server that believes to lead; there may be several.
func (w *world) someLeader(t ident.TabletID, other *simServer) *simServer {
	if w.rng.IntN(5) == 0 {
		return other
	}
	first := w.rng.IntN(len(w.servers))
	for i := range w.servers {
		s := w.servers[(first+i)%len(w.servers)]
		if s.up && !s.paused && s.status(t).Role == nyalav1.Role_ROLE_LEADER {
			return s
		}
	}
	return other
}

// someTimestamp is one near the clocks, where it matters.
func (w *world) someTimestamp() hybridtime.Timestamp {
	s := w.servers[w.rng.IntN(len(w.servers))]
	ts := max(s.clock.last, s.clock.wall())
	switch w.rng.IntN(3) {
	case 0:
		return ts + hybridtime.Timestamp(w.rng.IntN(4))
	case 1:
		return ts.Add(time.Duration(w.rng.IntN(4000)-2000) * time.Microsecond)
	default:
		return ts.Add(time.Duration(w.rng.IntN(400)-200) * time.Millisecond)
	}
}

// heal ends all faults and lets the cluster run in good order; then a write, a read and a close on every replica have to
// succeed, and every replica has to apply everything.
func (w *world) heal() {
	w.calm = true
	clear(w.cut)
	clear(w.noData)
	for _, s := range w.servers {
		s.paused = false
	}
	w.trace.add("everything heals")
	w.rightOnesGoOn()
	for _, s := range w.servers {
		s.down = false
		if !s.up {
			w.boot(s)
		}
	}
	// One server that stays fenced keeps nobody from going on, and leads nothing.
	var fenced *simServer
	if w.opts.servers > 1 && w.opts.members == 0 && w.rng.IntN(2) == 0 {
		fenced = w.servers[w.rng.IntN(len(w.servers))]
		w.fence(fenced, true)
	}
	// An entry that a clock far ahead stamped is taken when the others' clocks are within their bound of it.
	w.now += 5 * time.Minute
	for _, t := range w.tablets {
		var leader *simServer
		ok := w.settle(400, func() bool {
			for _, s := range w.servers {
				if s.status(t).Ready && s != fenced {
					leader = s
					return true
				}
			}
			return false
		})
		if !ok {
			w.check.failf("%s: no leader after everything healed", t)
			return
		}
		before := w.check.commits
		if !w.settle(400, func() bool {
			if w.check.commits > before && w.converged(t) {
				return true
			}
			if s := w.ready(t); s != nil && w.check.commits == before && w.next%8 == 0 {
				w.ask(s, "propose", t, 0)
			}
			w.next++
			return false
		}) {
			w.check.failf("%s: replicas don't converge after everything healed (leader s%d)", t, leader.id)
			return
		}
		w.lastNoticeLost(t)
		for _, s := range w.servers {
			if !w.mustHold(s, t) {
				continue
			}
			if s.status(t).ConfigPending {
				w.check.failf("server %d: a change of %s is pending though all is applied", s.id, t)
			}
			w.expect(s, "close", t, s.clock.wall())
		}
		if s := w.ready(t); s != nil {
			w.expect(s, "read", t, 0)
		}
		if w.opts.members > 0 && w.check.fault == "" {
			w.changesGoOn(t)
		}
		if fenced != nil && !w.settle(100, func() bool { return fenced.status(t).Role != nyalav1.Role_ROLE_LEADER }) {
			w.check.failf("server %d leads %s though its clock is fenced", fenced.id, t)
		}
	}
	if fenced != nil {
		w.fence(fenced, false)
	}
	w.staysCalm()
	if w.opts.quiet {
		w.restAll()
	}
}

// staysCalm lets four election timeouts pass with nothing to do: nobody stands for election where every leader is heard.
func (w *world) staysCalm() {
	terms := map[ident.TabletID]ident.Term{}
	look := func(then func(t ident.TabletID, term ident.Term)) {
		for _, t := range w.tablets {
			for _, s := range w.servers {
				if st := s.status(t); st.Role == nyalav1.Role_ROLE_LEADER {
					then(t, st.Term)
				}
			}
		}
	}
	look(func(t ident.TabletID, term ident.Term) { terms[t] = max(terms[t], term) })
	w.settle(24, func() bool { return false })
	look(func(t ident.TabletID, term ident.Term) {
		if term > terms[t] {
			w.check.failf("%s: term %d is won though the leader of term %d is heard by all", t, term, terms[t])
		}
	})
}

// fence tells a server that its clock is fenced, or no more.
func (w *world) fence(s *simServer, fenced bool) {
	s.fenced = fenced
	if s.up {
		w.trace.add("fence s%d: %v", s.id, fenced)
		s.core.SetFenced(fenced)
		w.take(s)
	}
}

func (w *world) ready(t ident.TabletID) *simServer {
	for _, s := range w.servers {
		if s.up && s.status(t).Ready && !s.fenced {
			return s
		}
	}
	return nil
}

func (w *world) expect(s *simServer, kind string, t ident.TabletID, ts hybridtime.Timestamp) {
	before := w.check.closes + w.check.reads
	w.ask(s, kind, t, ts)
	id := w.next
	if !w.settle(200, func() bool { return w.pending[id] == nil }) || w.check.closes+w.check.reads == before {
		w.check.failf("server %d: %s of %s isn't answered after everything healed", s.id, kind, t)
	}
}

// converged says whether all replicas have applied everything there is.
func (w *world) converged(t ident.TabletID) bool {
	last := ident.Index(0)
	for _, s := range w.servers {
		if w.mustHold(s, t) {
			last = max(last, s.status(t).LastIndex)
		}
	}
	for _, s := range w.servers {
		if w.mustHold(s, t) && s.status(t).Applied != last {
			return false
		}
	}
	return true
}

// settle runs everything in good order, tick by tick, until ok.
func (w *world) settle(ticks int, ok func() bool) bool {
	for range ticks {
		if w.check.fault != "" {
			return true
		}
		if ok() {
			return true
		}
		w.now += 50 * time.Millisecond
		for _, s := range w.servers {
			if s.down {
				continue
			}
			if !s.up {
				w.boot(s)
			}
			w.tick(s)
		}
		busy := true
		w.copyAll()
		for turns := 0; busy && w.check.fault == ""; turns++ {
			if turns > 10_000 {
				w.check.failf("the cluster never comes to rest")
			}
			busy = w.deliverable() >= 0
			w.deliver()
			for _, s := range w.servers {
				busy = w.flushHeartbeats(s) || busy || !s.stalled && len(s.appends) > 0 || len(s.applies) > 0
				w.commit(s)
				w.apply(s)
			}
		}
	}
	return ok()
}

// run drives a world through its seed; the fault, if any, is in its checker.
func (w *world) run() {
	defer w.start()()
	for range w.opts.steps {
		w.chaos()
		if w.check.fault != "" {
			return
		}
	}
	if w.opts.rivals {
		w.rivals(w.tablets[0])
	}
	w.heal()
}

// TestSim runs clusters through random events and checks the invariants after each. A failing seed is run again with
//
//	go test ./internal/consensus -run TestSim -sim.seed=N
func TestSim(t *testing.T) {
	from, n := *simFrom, *simSeeds
	if raceDetector {
		n = min(n, 30)
	}
	to := from + n - 1
	if *simSeed != 0 {
		from, to = *simSeed, *simSeed
	}
	var commits, closes, reads, elections, cuts, majorities, configs, copies int
	for seed := from; seed <= to; seed++ {
		w := newWorld(optionsOf(seed))
		w.trace.on = *simSeed != 0
		w.run()
		if f := w.check.fault; f != "" {
			t.Fatalf("seed %d: %s\n%s\nseed %d: %s\nrun it again: go test ./internal/consensus -run TestSim -sim.seed=%d", seed, f, w.trace, seed, f, seed)
		}
		commits, closes, reads, elections = commits+w.check.commits, closes+w.check.closes, reads+w.check.reads, elections+w.check.elections
		cuts, majorities = cuts+w.check.cuts, majorities+w.check.majorities
		configs, copies = configs+w.check.configs, copies+w.check.copies
	}
	t.Logf("%d seeds: %d commits, %d closes, %d reads, %d elections, %d cuts, %d majorities with right clocks, %d configs, %d copies", to-from+1, commits,
		closes, reads, elections, cuts, majorities, configs, copies)
}

// TestSimRepeats shows that a seed gives the same run each time.
func TestSimRepeats(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		var hashes [2]uint64
		for i := range hashes {
			w := newWorld(optionsOf(seed))
			w.run()
			hashes[i] = w.trace.hash
		}
		if hashes[0] != hashes[1] {
			t.Fatalf("seed %d: two runs differ", seed)
		}
	}
}

var _ consensus.Clock = (*simClock)(nil)
