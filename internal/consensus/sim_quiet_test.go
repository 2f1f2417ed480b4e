package consensus_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// Servers that send each other beats, and groups that rest: the simulated cluster's part of docs/consensus.md, "Quiet groups" and
// "Servers that fall silent".

// simBeat is a beat under way.
type simBeat struct {
	incarnation uint64
	sum         consensus.QuietSum
}

const (
	simHeartbeatTicks = 2
	simElectionTicks  = 6
)

// meet lets a server that boots begin to listen for the others, and returns the sums of its groups.
func (w *world) meet(s *simServer) *consensus.QuietPairs {
	s.pairs = consensus.NewQuietPairs()
	s.servers = consensus.NewServers(consensus.ServersConfig{
		Self: ident.ServerID(serverName(s.id)), HeartbeatTicks: simHeartbeatTicks, SilentTicks: simElectionTicks,
	})
	s.beatAge = s.id % simHeartbeatTicks
	return s.pairs
}

// tick moves a server's time on.
func (w *world) tick(s *simServer) {
	if !s.up || s.paused {
		return
	}
	if w.opts.quiet {
		s.servers.Tick()
		w.decide(s)
		if s.beatAge++; s.beatAge >= simHeartbeatTicks {
			s.beatAge = 0
			w.beat(s)
		}
	}
	s.core.Tick()
	w.take(s)
}

func (w *world) beat(s *simServer) {
	for _, o := range w.servers {
		if o != s && !w.lost(s.id, o.id, consensus.Control) {
			w.flight = append(w.flight, &packet{from: s.id, to: o.id, channel: consensus.Control, beat: &simBeat{
				uint64(s.restarts + 1), s.pairs.Leads(ident.ServerID(serverName(o.id))),
			}})
		}
	}
}

// questions passes on what the core wants to know of other servers.
func (w *world) questions(s *simServer, qs []consensus.Question) {
	for _, q := range qs {
		s.servers.Ask(q)
	}
	if len(qs) > 0 {
		w.decide(s)
	}
}

// decide does what a server has found out about the others.
func (w *world) decide(s *simServer) {
	for again := true; again; {
		d := s.servers.Take()
		again = len(d.Lists) > 0
		for _, n := range d.News {
			w.trace.add("  s%d: of %s heard %v beats %v restarted %v deaf %v", s.id, n.Server, n.Heard, n.Beats, n.Restarted, slices.Sorted(maps.Keys(n.Deaf)))
			s.core.HearOf(n)
		}
		for _, l := range d.Compare {
			w.trace.add("  s%d: %s lists %d groups", s.id, l.From, len(l.Groups))
			w.check.lists++
			s.core.CompareQuiet(l)
		}
		for _, r := range d.Lists {
			s.servers.SendList(r, s.core.QuietGroups(r.From))
		}
		for _, m := range d.Messages {
			w.transmit(s, consensus.Outgoing{To: m.To, Message: &nyalav1.GroupMessage{Kind: &nyalav1.GroupMessage_Server{Server: m.Message}}})
		}
	}
	w.take(s)
}

// deliverServer delivers what is for the server itself; false: it is for a group.
func (w *world) deliverServer(s *simServer, p *packet) bool {
	from := ident.ServerID(serverName(p.from))
	if b := p.beat; b != nil {
		s.servers.HearBeat(from, b.incarnation, b.sum, s.pairs.Follows(from))
		w.decide(s)
		return true
	}
	m := new(nyalav1.GroupMessage)
	if err := proto.Unmarshal(p.bytes, m); err != nil {
		invariant.Check(false, "%v", err)
	}
	s.servers.Heard(from)
	if sm := m.GetServer(); sm != nil {
		w.trace.add("deliver s%d->s%d %v", p.from, p.to, sm)
		s.servers.Receive(from, sm)
		w.decide(s)
		return true
	}
	w.decide(s)
	return false
}

// deliverable is the first packet that isn't for a paused server, -1: none.
func (w *world) deliverable() int {
	return slices.IndexFunc(w.flight, func(p *packet) bool { return !w.servers[p.to].paused })
}

// chaosQuiet takes a random step in which groups rest, or what rests is disturbed; it says whether it did.
func (w *world) chaosQuiet(s *simServer, t ident.TabletID) bool {
	if s.paused && w.rng.IntN(30) == 0 {
		s.paused = false
		w.trace.add("s%d goes on", s.id)
		if w.rng.IntN(2) == 0 {
			w.ask(s, "read", t, 0) // before it hears of anything
		}
	}
	if s.paused {
		return true
	}
	switch n := w.rng.IntN(1000); {
	case n < 8:
		w.idle(6 + w.rng.IntN(14))
	case n < 11:
		l := w.someLeader(t, s)
		l.paused = l.up
		w.trace.add("s%d is paused", l.id)
		w.idle(w.rng.IntN(16))
	case n < 14:
		w.isolateQuiet(t, s)
	default:
		return false
	}
	return true
}

// isolateQuiet cuts off or pauses the leader of a group that rests, or crashes it; lets the others go on, write, and then asks the
// one that led for a read, when it may be back.
func (w *world) isolateQuiet(t ident.TabletID, s *simServer) {
	w.idle(10)
	s = w.someLeader(t, s)
	if !s.up {
		return
	}
	switch w.rng.IntN(4) {
	case 0:
		s.paused = true
		w.trace.add("s%d is paused", s.id)
	case 1:
		w.trace.add("crash s%d", s.id)
		w.crash(s)
	default:
		clear(w.cut)
		into, out := w.rng.IntN(3) > 0, w.rng.IntN(3) > 0
		for i := range w.servers {
			if i != s.id {
				w.cut[[2]int{i, s.id}], w.cut[[2]int{s.id, i}] = into, out
			}
		}
		w.trace.add("cut off s%d: in %v, out %v", s.id, into, out)
	}
	w.idle(simElectionTicks + w.rng.IntN(2*simElectionTicks))
	for _, o := range w.servers {
		if o != s && o.up && !o.paused && o.status(t).Ready {
			w.ask(o, "propose", t, 0)
		}
	}
	w.idle(1)
	if w.rng.IntN(2) == 0 {
		s.paused = false
		w.ask(s, "read", t, 0)
		w.ask(s, "close", t, w.someTimestamp())
		w.idle(w.rng.IntN(3))
	}
}

// idle lets the servers that are up go on in good order for some ticks, with nothing asked of them. What is cut stays cut.
func (w *world) idle(ticks int) {
	w.trace.add("idle for %d", ticks)
	w.orderly = true
	defer func() { w.orderly = false }()
	for range ticks {
		w.now += 50 * time.Millisecond
		for _, s := range w.servers {
			w.tick(s)
		}
		for turns, busy := 0, true; turns < 300 && busy && w.check.fault == ""; turns++ {
			busy = w.deliverable() >= 0
			w.deliver()
			for _, s := range w.servers {
				busy = w.flushHeartbeats(s) || busy
				w.commit(s)
				w.apply(s)
			}
		}
	}
}

// resting says whether every replica of every tablet is quiet, but for those that are members no more.
func (w *world) resting() bool {
	for _, s := range w.servers {
		for _, t := range w.tablets {
			if s.up && w.mustHold(s, t) && !s.status(t).Quiet {
				return false
			}
		}
	}
	return true
}

// restAll shows, when everything is well, that all groups come to rest, that nothing but beats is sent then, that a close wakes
// nobody, and that a group whose leader is lost in one way or another has a new one within three election timeouts.
func (w *world) restAll() {
	if w.check.fault != "" {
		return
	}
	within := 60
	if w.opts.members > 0 {
		within = 200 // a log may be held for a copy that came to nothing
	}
	if !w.settle(within, w.resting) {
		w.check.failf("groups don't come to rest after everything healed")
		return
	}
	sent := 0
	w.onSend = func(*nyalav1.GroupMessage) { sent++ }
	w.settle(5*simElectionTicks, func() bool { return false })
	if w.opts.members > 0 {
		sent = 0 // who was removed, and knows nobody who leads now, asks on until a master finds it
	}
	if w.onSend = nil; sent > 0 || !w.resting() {
		w.check.failf("%d messages were sent while all groups were to rest: %v", sent, w.resting())
		return
	}
	for _, s := range w.servers {
		if w.mustHold(s, w.tablets[0]) {
			w.expect(s, "close", w.tablets[0], s.clock.wall())
		}
	}
	if !w.resting() {
		w.check.failf("a close has woken a group")
	}
	if w.opts.servers < 3 || w.opts.members > 0 || w.check.fault != "" {
		return
	}
	w.loseLeader(w.tablets[w.rng.IntN(len(w.tablets))])
}

// loseLeader takes the leader of a resting group away.
func (w *world) loseLeader(t ident.TabletID) {
	old := w.ready(t)
	if old == nil {
		w.check.failf("%s rests without a leader", t)
		return
	}
	how, within := w.rng.IntN(7), 3*simElectionTicks
	if w.opts.timers {
		within *= 3 // as many attempts
	}
	switch how {
	case 0:
		w.crash(old)
		old.down = true
	case 1:
		w.crash(old)
		w.boot(old)
	case 2:
		old.paused = true
	case 3, 4:
		old.core.StopGroup(t)
		delete(old.views, t)
		w.take(old)
		if how == 4 { // what it says as it goes is lost: two beats show it, and raft's timer has to run out
			w.flight = nil
			within += simElectionTicks
		}
	case 5, 6:
		for i := range w.servers {
			if i != old.id {
				w.cut[[2]int{i, old.id}], w.cut[[2]int{old.id, i}] = true, how == 5
			}
		}
	}
	w.trace.add("s%d is lost to %s: up %v, paused %v, cut %v", old.id, short(t), old.up, old.paused, w.cut)
	before := w.check.group(t).stamped
	if !w.settle(within, func() bool {
		if how == 4 && !w.otherRest(t) {
			w.check.failf("a group wakes that rests on both sides")
		}
		for _, s := range w.servers {
			if s.up && !s.paused && s.status(t).Ready && (s != old || s.restarts > 0) && w.check.group(t).stamped == before {
				w.ask(s, "propose", t, 0)
			}
		}
		return w.check.group(t).stamped > before
	}) {
		w.check.failf("%s: no progress within three election timeouts after its leader was lost", t)
		return
	}
	switch how {
	case 0:
		if !w.settle(60, w.resting) {
			w.check.failf("%s: it doesn't rest while a server is away", t)
			return
		}
		w.boot(old)
		old.down = false
		if !w.opts.timers && !w.settle(simElectionTicks, func() bool { return w.converged(t) }) {
			w.check.failf("%s: a server that is back isn't brought up", t)
			return
		}
	case 3, 4:
		w.startGroup(old, t)
		w.take(old)
	default:
		// The one that led is back, and is asked before it hears of anything.
		old.paused = false
		w.ask(old, "read", t, 0)
		clear(w.cut)
	}
	if !w.settle(100, func() bool { return w.resting() && w.converged(t) }) {
		w.check.failf("%s: its replicas don't come to rest after the one that led is back", t)
	}
}

// otherRest says whether all groups but one rest.
func (w *world) otherRest(but ident.TabletID) bool {
	for _, s := range w.servers {
		for _, t := range w.tablets {
			if t != but && w.mustHold(s, t) && !s.status(t).Quiet {
				return false
			}
		}
	}
	return true
}

// rests checks what quiet replicas claim (I12).
func (c *checker) rests(s *simServer, st *consensus.GroupStatus) {
	switch {
	case st.Leader == 0:
		c.failf("server %d: %s: quiet without a leader", s.id, st.Tablet)
	case st.Commit != st.LastIndex || st.Applied != st.Commit:
		c.failf("server %d: %s: quiet, applied is %d, committed %d, last %d", s.id, st.Tablet, st.Applied, st.Commit, st.LastIndex)
	case st.Leader != st.Replica && c.group(st.Tablet).leaders[st.Term] != st.Leader:
		c.failf("server %d: %s: quiet under replica %d, which never led in term %d", s.id, st.Tablet, st.Leader, st.Term)
	}
}

// sums: what goes with beats is what is quiet.
func (c *checker) sums(s *simServer) {
	count := make([]uint64, len(c.w.servers))
	for _, v := range s.views {
		if st := v.Status(); st.Quiet && st.Err == nil {
			c.rests(s, &st)
			if p := st.LeaderPeer(); p != nil && st.Leader != st.Replica {
				count[serverNumber(p.GetServerId())]++
			}
		}
	}
	for i, n := range count {
		if got := s.pairs.Follows(ident.ServerID(serverName(i))); got.Count != n {
			c.failf("server %d: %d groups rest under server %d, the sum says %d", s.id, n, i, got.Count)
		}
	}
}

// describeQuiet describes the messages about quiet groups.
func describeQuiet(m *nyalav1.GroupMessage) string {
	switch k := m.GetKind().(type) {
	case *nyalav1.GroupMessage_QuietOffer:
		return fmt.Sprintf("QuietOffer %d term %d index %d", k.QuietOffer.GetSeq(), k.QuietOffer.GetTerm(), k.QuietOffer.GetIndex())
	case *nyalav1.GroupMessage_QuietAnswer:
		return fmt.Sprintf("QuietAnswer %d term %d index %d", k.QuietAnswer.GetSeq(), k.QuietAnswer.GetTerm(), k.QuietAnswer.GetIndex())
	case *nyalav1.GroupMessage_Leave:
		return fmt.Sprintf("Leave term %d", k.Leave.GetTerm())
	case *nyalav1.GroupMessage_NotQuiet:
		return fmt.Sprintf("NotQuiet term %d", k.NotQuiet.GetTerm())
	default:
		return ""
	}
}
