package consensus_test

import (
	"slices"

	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// Members that come and go in the simulated cluster: learners are added, copied and promoted, voters removed and replaced. A
// copy is what another replica's store holds, taken at one moment and installed at another, with anything between.

// simCopy is a copy under way: first the log is held, then the state is taken, then it is installed.
type simCopy struct {
	from, to *simServer
	restarts int // of the source, when it began
	tablet   ident.TabletID
	replica  ident.ReplicaID
	min      ident.Index
	release  func()
	state    []consensus.CommittedEntry
}

func (w *world) limits() consensus.Limits {
	l := consensus.Limits{
		MaxMessageBytes: 64, MaxInflightBytes: 512, MaxInflightMessages: 4, MaxApplyingBytes: 256, MaxUncommittedBytes: 4 << 10, MinCutEntries: 3,
	}
	if w.opts.usual {
		l = consensus.Limits{}
	}
	if w.opts.members > 0 {
		l.PromoteLag, l.RetainBytes, l.HoldBytes = 4, 100, 2000
	}
	return l
}

// serverOf is where a replica is; nil: nowhere.
func (w *world) serverOf(t ident.TabletID, id ident.ReplicaID) *simServer {
	for _, s := range w.servers {
		if st := s.stores[t]; st != nil && st.replica == id {
			return s
		}
	}
	return nil
}

// mustHold says whether a server's replica is a member by the last config that is committed.
func (w *world) mustHold(s *simServer, t ident.TabletID) bool {
	if w.opts.members == 0 {
		return true
	}
	return slices.ContainsFunc(everybody(w.check.lastConfig(t)), func(p *nyalav1.Peer) bool { return p.GetServerId() == serverName(s.id) })
}

func everybody(c *nyalav1.RaftConfig) []*nyalav1.Peer {
	return slices.Concat(c.GetPeers(), c.GetOutgoingPeers())
}

// membersNews takes what a core says about members.
func (w *world) membersNews(s *simServer, d consensus.Decisions) {
	for _, n := range d.Needs {
		id := ident.ReplicaID(n.Peer.GetReplicaId())
		if !slices.ContainsFunc(w.copies, func(c *simCopy) bool { return c.tablet == n.Tablet && c.replica == id }) {
			w.trace.add("  s%d says that replica %d of %s needs a copy", s.id, id, short(n.Tablet))
			w.copies = append(w.copies, &simCopy{
				from: s, restarts: s.restarts, to: w.servers[serverNumber(n.Peer.GetServerId())], tablet: n.Tablet, replica: id,
				min: ident.Index(n.Config.GetOpidIndex()),
			})
		}
	}
	for _, r := range d.Removals {
		w.check.removed(s, r)
		if st := s.stores[r.Tablet]; st != nil && st.replica == r.Replica {
			w.trace.add("  s%d hears that replica %d of %s is removed", s.id, r.Replica, short(r.Tablet))
			st.removed = true
		}
	}
}

// answerStranger answers as a server does whose replica isn't the one addressed, or isn't known to the sender any more.
func (w *world) answerStranger(s *simServer, from int, m *nyalav1.GroupMessage) {
	var a *nyalav1.GroupMessage
	if st := s.status(ident.TabletID(ident.FromBytes([16]byte(m.GetTabletId())))); uint64(st.Replica) != m.GetTo() {
		a = consensus.NoReplicaAnswer(m, st.Replica)
	} else {
		a = consensus.RemovedAnswer(m, &st)
	}
	if a != nil {
		w.transmit(s, consensus.Outgoing{To: ident.ServerID(serverName(from)), Channel: consensus.Control, Message: a})
	}
}

// membersChaos lets something happen that has to do with members.
func (w *world) membersChaos(s *simServer, t ident.TabletID) {
	switch n := w.rng.IntN(100); {
	case n < 40:
		s = w.someLeader(t, s)
		if ch := w.someChange(s.status(t).Config); ch != nil {
			w.askChange(s, t, *ch)
		}
	case n < 80:
		if len(w.copies) > 0 {
			w.copyStep(w.copies[w.rng.IntN(len(w.copies))])
		}
	case n < 90:
		if st := s.stores[t]; s.up && !s.noSpace && !s.paused && st != nil && st.removed {
			w.deleteReplica(s, t)
		}
	case n < 95:
		// A burst after which the log is cut: who is away needs a copy.
		s = w.someLeader(t, s)
		for range 4 {
			w.ask(s, "propose", t, 0)
		}
		for _, s := range w.servers {
			w.flush(s, t)
		}
	default:
		// A leader that is cut off with a change that nobody hears of.
		if l := w.someLeader(t, s); l.up {
			if ch := w.someChange(l.status(t).Config); ch != nil {
				w.cutSome(l, t)
				w.askChange(l, t, *ch)
			}
		}
	}
}

// someChange is one that fits a config, mostly.
func (w *world) someChange(c *nyalav1.RaftConfig) *consensus.ConfigChange {
	if c == nil {
		return nil
	}
	ch := &consensus.ConfigChange{}
	var learners, voters []ident.ReplicaID
	for _, p := range c.GetPeers() {
		if id := ident.ReplicaID(p.GetReplicaId()); p.GetLearner() {
			learners = append(learners, id)
		} else {
			voters = append(voters, id)
		}
	}
	some := func(ids []ident.ReplicaID) []ident.ReplicaID {
		if len(ids) == 0 {
			return nil
		}
		return []ident.ReplicaID{ids[w.rng.IntN(len(ids))]}
	}
	switch n := w.rng.IntN(10); {
	case n < 4:
		ch.Promote = some(learners)
	case n < 5 && len(voters) > 1:
		ch.Promote, ch.Remove = some(learners), some(voters)
	case n < 7 && len(voters) > 1+w.rng.IntN(3):
		ch.Remove = some(voters)
	case n < 8:
		ch.Remove = some(learners)
	}
	if len(ch.Promote)+len(ch.Remove) == 0 || w.rng.IntN(8) == 0 {
		for _, s := range w.servers {
			if free := !slices.ContainsFunc(everybody(c), func(p *nyalav1.Peer) bool { return p.GetServerId() == serverName(s.id) }); free && w.rng.IntN(2) == 0 {
				ch.Add = append(ch.Add, &nyalav1.Peer{ServerId: serverName(s.id), Address: serverName(s.id) + ":7050"})
				break
			}
		}
	}
	return ch
}

func (w *world) askChange(s *simServer, t ident.TabletID, ch consensus.ConfigChange) *asked {
	if !s.up || s.paused {
		return nil
	}
	w.next++
	id := w.next
	a := &asked{server: s.id, tablet: t, kind: "change"}
	w.pending[id] = a
	w.trace.add("s%d change #%d %s add %v promote %v remove %v", s.id, id, short(t), ch.Add, ch.Promote, ch.Remove)
	s.core.ChangeConfig(t, &ch, id)
	w.take(s)
	return a
}

// copyStep takes a copy one step on.
func (w *world) copyStep(c *simCopy) {
	drop := func(why string) {
		w.trace.add("copy of %s to replica %d ends: %s", short(c.tablet), c.replica, why)
		w.copies = slices.DeleteFunc(w.copies, func(o *simCopy) bool { return o == c })
		if c.release != nil && c.from.restarts == c.restarts && c.from.up {
			c.release()
		}
	}
	src := c.from.stores[c.tablet]
	switch {
	case c.state != nil:
		if c.to.up && !c.to.noSpace && !c.to.paused {
			drop(w.install(c))
		}
	case !c.from.up || c.from.restarts != c.restarts || c.from.views[c.tablet] == nil:
		drop("the source is gone")
	case c.from.paused:
	case c.release == nil:
		release, err := c.from.core.HoldLog(c.tablet, c.replica, c.from.status(c.tablet).Applied)
		if err != nil {
			drop(err.Error())
			return
		}
		c.release = release
	case len(src.entries) > 0 && src.entries[len(src.entries)-1].Index >= c.min:
		c.state = slices.Clone(src.entries)
		w.trace.add("copy of %s to replica %d: state through %s", short(c.tablet), c.replica, c.state[len(c.state)-1].OpID)
	}
}

// install puts a copy in the place of what its server holds.
func (w *world) install(c *simCopy) string {
	s, t := c.to, c.tablet
	in := consensus.CopyInstall{Tablet: t, Replica: c.replica, Record: []byte("record"), Start: c.state[len(c.state)-1].OpID}
	for _, e := range c.state {
		in.Timestamp = max(in.Timestamp, e.Timestamp)
	}
	var before *wal.Log
	if old := s.stores[t]; old != nil {
		if !w.stopReplica(s, t) {
			return "its server has crashed"
		}
		if in.Old, in.OldReplica = old.number, old.replica; old.replica == c.replica {
			before = s.logOf(t)
		}
	}
	in.Number = s.log.AllocateNumber()
	if w.plantCopy != nil {
		w.plantCopy(&in)
	}
	var cm consensus.Commit
	if err := in.Fill(&cm, s.log); err != nil {
		if s.stores[t] != nil {
			w.startGroup(s, t)
			w.take(s)
		}
		return err.Error()
	}
	var was *raftpb.HardState
	var last ident.OpID
	if before != nil {
		w.check.installed(s, &in, before)
		was, last = before.HardState(), before.LastOpID()
		if term, err := before.TermOf(in.Start.Index); err != nil || term != in.Start.Term {
			last = in.Start // the rest is of another history
		}
	}
	cm.Seal(s.clock)
	if err := s.log.Commit(&cm.Batch); err != nil {
		w.trace.add("commit of s%d failed: %v", s.id, err)
		// It may be there after the restart or not: the log says.
		s.logDead = true
		s.core.FailAll(err)
		w.take(s)
		w.crash(s)
		if s.log.Log(in.Number) != nil {
			s.stores[t] = &simStore{number: in.Number, replica: c.replica, entries: c.state, durable: len(c.state)}
		}
		return "its server has crashed"
	}
	cm.Durable(s.clock)
	s.stores[t] = &simStore{number: in.Number, replica: c.replica, entries: c.state, durable: len(c.state)}
	w.check.copies++
	if before != nil {
		w.check.kept(s, &in, was, last)
	}
	w.startGroup(s, t)
	w.take(s)
	return "installed"
}

// deleteReplica removes a replica from a server.
func (w *world) deleteReplica(s *simServer, t ident.TabletID) {
	w.trace.add("s%d deletes its replica of %s", s.id, short(t))
	if !w.stopReplica(s, t) {
		return
	}
	var b wal.Batch
	b.DeleteGroup(s.stores[t].number)
	if err := s.log.Commit(&b); err != nil {
		s.logDead = true
		s.core.FailAll(err)
		w.take(s)
		w.crash(s)
		if s.log.Log(s.stores[t].number) != nil {
			return
		}
	}
	delete(s.stores, t)
}

// copyAll brings copies to their end, when everything is in good order, and removes what is no member.
func (w *world) copyAll() {
	for len(w.copies) > 0 && w.check.fault == "" {
		c := w.copies[0]
		had, state := len(w.copies), c.state != nil
		if w.copyStep(c); len(w.copies) == had && c.state != nil == state && c.release != nil {
			break // it waits for its source to apply more
		}
	}
	for _, s := range w.servers {
		for _, t := range w.tablets {
			if st := s.stores[t]; st != nil && st.removed && s.up && !s.paused {
				w.deleteReplica(s, t)
			}
		}
	}
}

// changesGoOn shows that a tablet's members can still be changed: one comes, is promoted, and the leader goes.
func (w *world) changesGoOn(t ident.TabletID) {
	change := func(what string, ch func(c *nyalav1.RaftConfig, leader *simServer) *consensus.ConfigChange) bool {
		before := len(w.check.group(t).members.configs)
		var a *asked
		ok := w.settle(300, func() bool {
			s, c := w.ready(t), w.check.lastConfig(t)
			if s == nil || len(c.GetOutgoingVoters()) > 0 || w.isPending(a) {
				return false
			}
			if a != nil && len(w.check.group(t).members.configs) > before {
				return w.converged(t)
			}
			next := ch(c, s)
			if next == nil {
				return true
			}
			before = len(w.check.group(t).members.configs)
			a = w.askChange(s, t, *next)
			return false
		})
		if !ok {
			w.check.failf("%s: %s doesn't come to pass after everything healed; the config is %v", t, what, w.check.lastConfig(t))
		}
		return ok && w.check.fault == ""
	}
	var added ident.ReplicaID
	if !change("a new member", func(c *nyalav1.RaftConfig, _ *simServer) *consensus.ConfigChange {
		for _, s := range w.servers {
			if !slices.ContainsFunc(c.GetPeers(), func(p *nyalav1.Peer) bool { return p.GetServerId() == serverName(s.id) }) {
				added = ident.ReplicaID(c.GetNextReplicaId())
				return &consensus.ConfigChange{Add: []*nyalav1.Peer{{ServerId: serverName(s.id), Address: serverName(s.id) + ":7050"}}}
			}
		}
		return nil
	}) {
		return
	}
	if added != 0 && !change("a promotion", func(*nyalav1.RaftConfig, *simServer) *consensus.ConfigChange {
		return &consensus.ConfigChange{Promote: []ident.ReplicaID{added}}
	}) {
		return
	}
	change("the leader's own removal", func(c *nyalav1.RaftConfig, s *simServer) *consensus.ConfigChange {
		if voters := slices.DeleteFunc(slices.Clone(c.GetPeers()), (*nyalav1.Peer).GetLearner); len(voters) < 2 {
			return nil
		}
		return &consensus.ConfigChange{Remove: []ident.ReplicaID{s.stores[t].replica}}
	})
}

// isPending says whether a request is still to be answered.
func (w *world) isPending(a *asked) bool {
	for _, p := range w.pending {
		if p == a {
			return a != nil
		}
	}
	return false
}
