package consensus_test

import (
	crand "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/wal"
)

// A simulated cluster: the Cores that run in production, on the log store's twin in memory, with a network, clocks and
// state machines that do what a seed says, one event at a time. After each event the checker looks at everything.

// world is a cluster and what is under way between its servers.
type world struct {
	rng     *rand.Rand
	opts    worldOptions
	servers []*simServer
	tablets []ident.TabletID
	flight  []*packet
	cut     map[[2]int]bool // one way
	noData  map[[2]int]bool // one way, the data channel alone
	now     time.Duration
	check   *checker
	lose    func(*nyalav1.GroupMessage) bool // unless nil: what is lost whatever happens
	calm    bool                             // the liveness phase: nothing goes wrong any more
	orderly bool                             // for a while nothing new goes wrong
	next    int                              // of tickets and payloads
	pending map[int]*asked
	epochs  uint64 // of the batchers so far
	copies  []*simCopy
	trace   *trace
	plant   func(*consensus.Core)
	// plantBatcher, unless nil, plants a mistake in each batcher.
	plantBatcher func(*consensus.HeartbeatBatcher)
	// plantCopy, unless nil, plants a mistake in the install of a copy.
	plantCopy func(*consensus.CopyInstall)
	// onSend and onAnswer, unless nil, see what leaves and what is answered.
	onSend   func(*nyalav1.GroupMessage)
	onAnswer func(consensus.Done)
}

type worldOptions struct {
	seed      uint64
	servers   int
	tablets   int
	learner   bool // the last server's replicas are learners
	members   int  // not 0: only so many servers hold replicas at first, and members come and go
	joint     bool // a joint config: all but the last, and all but the first
	noPreVote bool
	clocks    bool // clocks step far and often, and are judged
	batched   bool // heartbeats go in batches
	quiet     bool // servers send beats, groups with nothing to do rest
	noPush    bool // commit indexes aren't pushed
	rivals    bool // two servers lead in turns at the end, each with entries of its own
	usual     bool // the limits of production; otherwise low ones
	timers    bool // with quiet: raft's own timers decide when groups elect
	steps     int
}

// packet is a message under way.
type packet struct {
	from, to int
	channel  consensus.Channel
	bytes    []byte
	beat     *simBeat // in place of a message
}

// asked is a request that hasn't been answered.
type asked struct {
	server  int
	tablet  ident.TabletID
	kind    string
	ts      hybridtime.Timestamp
	floor   ident.Index // a read: the highest index applied anywhere when it was asked
	payload string
}

// simServer is one server: up, or down with what its disk holds.
type simServer struct {
	id       int
	up       bool
	core     *consensus.Core
	batcher  *consensus.HeartbeatBatcher
	log      *wal.Mem
	clock    *simClock
	views    map[ident.TabletID]*consensus.View
	appends  []consensus.Append
	applies  []consensus.Apply
	stores   map[ident.TabletID]*simStore
	noSpace  bool
	stalled  bool // no commit ends
	logDead  bool
	fenced   bool
	blamed   bool
	down     bool // and is to stay so
	restarts int
	// paused: all its clocks stand still, and nothing of it moves.
	paused  bool
	servers *consensus.Servers
	pairs   *consensus.QuietPairs
	beatAge int // ticks since its beats left
}

// simStore is a replica's state machine: what it has applied, and how much of that a crash leaves.
type simStore struct {
	number  ident.LocalNumber
	replica ident.ReplicaID
	entries []consensus.CommittedEntry
	durable int
	removed bool // it was told that it is no member any more
}

// seededReader stands in for crypto/rand.Reader, from which raft draws its election timeouts.
type seededReader struct{ rng *rand.Rand }

func (r seededReader) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r.rng.Uint32())
	}
	return len(b), nil
}

var _ io.Reader = seededReader{}

func serverName(i int) string { return fmt.Sprintf("s%d", i) }

func newWorld(o worldOptions) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(o.seed, 1)), opts: o, cut: map[[2]int]bool{}, noData: map[[2]int]bool{}, pending: map[int]*asked{},
		trace: &trace{}, now: 1000 * time.Second,
	}
	w.check = newChecker(w)
	for i := range o.tablets {
		w.tablets = append(w.tablets, ident.TabletID(fmt.Sprintf("%032x", i+1)))
	}
	return w
}

// start creates the servers and their replicas. Raft's random source is seeded until the returned function is called.
func (w *world) start() (restore func()) {
	old := crand.Reader
	crand.Reader = seededReader{rand.New(rand.NewPCG(w.opts.seed, 2))}
	w.boots()
	return func() { crand.Reader = old }
}

// boots makes the servers and starts them.
func (w *world) boots() {
	for i := range w.opts.servers {
		s := &simServer{id: i, log: wal.NewMem(), stores: map[ident.TabletID]*simStore{}}
		var b wal.Batch
		for _, t := range w.tablets {
			if w.opts.members > 0 && i >= w.opts.members {
				continue
			}
			n := s.log.AllocateNumber()
			b.CreateGroup(n, t, []byte("record"), ident.OpID{})
			s.stores[t] = &simStore{number: n, replica: ident.ReplicaID(i + 1)}
		}
		if err := s.log.Commit(&b); err != nil && !b.Empty() {
			invariant.Check(false, "%v", err)
		}
		w.servers = append(w.servers, s)
		w.boot(s)
	}
}

func (w *world) config() *nyalav1.RaftConfig {
	n := w.opts.servers
	if w.opts.members > 0 {
		n = w.opts.members
	}
	c := &nyalav1.RaftConfig{NextReplicaId: uint64(n + 1)}
	for i := range n {
		p := &nyalav1.Peer{ReplicaId: uint64(i + 1), ServerId: serverName(i), Address: serverName(i) + ":7050"}
		switch last := i == w.opts.servers-1; {
		case w.opts.learner && last:
			p.Learner = true
		case w.opts.joint && i == 0:
			// In the old half alone: not a voter of the new config, but still a member.
			c.OutgoingVoters = append(c.OutgoingVoters, p.GetReplicaId())
			p.Learner = true
		case w.opts.joint && !last:
			c.OutgoingVoters = append(c.OutgoingVoters, p.GetReplicaId())
		}
		c.Peers = append(c.Peers, p)
	}
	return c
}

// boot starts a server on what its disk holds.
func (w *world) boot(s *simServer) {
	offset := time.Duration(0)
	if s.clock != nil && w.opts.clocks {
		offset = s.clock.offset // a restart mends no clock
	}
	s.clock = &simClock{world: w, bound: 10 * time.Second, offset: offset}
	if s.restarts > 0 {
		s.clock.last = max(decodeMark(s.log.Meta(consensus.MetaClockMark)), s.log.LastTimestamp())
		s.clock.mark = decodeMark(s.log.Meta(consensus.MetaClockMark))
		s.clock.promise = decodeMark(s.log.Meta(consensus.MetaPromiseMark))
	}
	s.core = consensus.NewCore(consensus.CoreConfig{
		HeartbeatTicks: 2, ElectionTicks: 6, PreElection: !w.opts.noPreVote, PushCommit: !w.opts.noPush,
		Quiesce: w.opts.quiet, ServerLiveness: w.opts.quiet && !w.opts.timers, Pairs: w.meet(s),
		Limits: w.limits(),
	}, s.clock)
	if w.plant != nil {
		w.plant(s.core)
	}
	s.batcher = w.newBatcher()
	if w.plantBatcher != nil {
		w.plantBatcher(s.batcher)
	}
	s.up, s.noSpace, s.logDead, s.stalled = true, false, false, false
	s.views = map[ident.TabletID]*consensus.View{}
	s.appends, s.applies = nil, nil
	s.blamed = false // it has heard nobody yet
	s.core.SetFenced(s.fenced)
	for _, t := range w.tablets {
		w.startGroup(s, t)
	}
	w.take(s)
}

func (w *world) startGroup(s *simServer, t ident.TabletID) {
	st := s.stores[t]
	if st == nil {
		return
	}
	cfg := consensus.GroupConfig{Number: st.number, Tablet: t, Replica: st.replica, Config: w.config()}
	for _, e := range st.entries {
		cfg.Applied = e.Index
		cfg.AppliedTimestamp = max(cfg.AppliedTimestamp, e.Timestamp)
		if e.Config != nil {
			cfg.Config = e.Config
		}
	}
	v, err := s.core.StartGroup(cfg, s.log.Log(st.number))
	if err != nil {
		w.check.failf("server %d: start %s: %v", s.id, t, err)
		return
	}
	s.views[t] = v
}

// take does what a core has decided, as far as that is at once: messages leave, appends and applies get in line.
func (w *world) take(s *simServer) {
	d := s.core.Take()
	for _, m := range d.Messages {
		w.check.message(s, m)
		w.transmit(s, m)
	}
	w.heartbeats(s, d.Heartbeats)
	for _, a := range d.Appends {
		w.check.append(s, a)
	}
	s.appends = append(s.appends, d.Appends...)
	for _, a := range d.Applies {
		w.check.committed(s, a)
	}
	s.applies = append(s.applies, d.Applies...)
	for _, done := range d.Done {
		w.answer(s, done)
	}
	for _, c := range d.Changes {
		w.trace.add("  s%d %s: %v term %d leader %d ready %v", s.id, short(c.Tablet), c.Role, c.Term, c.Leader, c.Ready)
		w.check.change(s, c)
	}
	for _, f := range d.Failures {
		if !s.logDead {
			w.check.failf("server %d: replica of %s failed: %v", s.id, f.Tablet, f.Err)
		}
	}
	w.questions(s, d.Questions)
	w.membersNews(s, d)
	w.check.statuses(s)
}

func (w *world) transmit(s *simServer, m consensus.Outgoing) {
	to, err := strconv.Atoi(strings.TrimPrefix(string(m.To), "s"))
	if err != nil {
		invariant.Check(false, "%v", err)
	}
	if w.onSend != nil {
		w.onSend(m.Message)
	}
	b, err := proto.Marshal(m.Message)
	if err != nil {
		invariant.Check(false, "%v", err)
	}
	if w.lose != nil && w.lose(m.Message) || w.lost(s.id, to, m.Channel) || !w.calm && !w.orderly && w.rng.IntN(100) < 3 {
		if hs := m.Message.GetHeartbeats(); hs != nil {
			if w.rng.IntN(3) == 0 {
				s.batcher.Lost(m.To, hs)
			}
		} else if w.rng.IntN(3) == 0 && m.Message.GetServer() == nil {
			s.core.Unreachable(ident.TabletID(ident.FromBytes([16]byte(m.Message.GetTabletId()))),
				ident.ReplicaID(m.Message.GetFrom()), ident.ReplicaID(m.Message.GetTo()))
		}
		return
	}
	w.flight = append(w.flight, &packet{from: s.id, to: to, channel: m.Channel, bytes: b})
	if len(w.flight) > 2000 {
		w.flight = w.flight[1:]
	}
}

func (w *world) lost(from, to int, ch consensus.Channel) bool {
	link := [2]int{from, to}
	return w.cut[link] || ch == consensus.Data && w.noData[link]
}

// deliver hands over one packet: mostly the oldest ones first, sometimes any, sometimes twice.
func (w *world) deliver() {
	i := w.deliverable()
	if i < 0 {
		return
	}
	if !w.calm && !w.orderly {
		switch w.rng.IntN(4) {
		case 0:
			i = w.rng.IntN(len(w.flight))
		case 1:
			i = w.rng.IntN(min(len(w.flight), 8))
		}
	}
	p := w.flight[i]
	if w.servers[p.to].paused {
		return
	}
	if w.calm || w.orderly || w.rng.IntN(100) >= 4 {
		w.flight = append(w.flight[:i], w.flight[i+1:]...)
	}
	s := w.servers[p.to]
	if !s.up || w.lost(p.from, p.to, p.channel) {
		return
	}
	if w.opts.quiet && w.deliverServer(s, p) {
		return
	}
	m := new(nyalav1.GroupMessage)
	if err := proto.Unmarshal(p.bytes, m); err != nil {
		invariant.Check(false, "%v", err)
	}
	w.trace.add("deliver s%d->s%d %s", p.from, p.to, describe(m))
	if hs := m.GetHeartbeats(); hs != nil {
		w.receiveBatch(s, p.from, hs)
	} else {
		w.check.delivered(s, m)
		w.answerStranger(s, p.from, m)
		s.core.Receive(m)
	}
	w.take(s)
}

// commit makes some of what a server has ready durable, as its log writer would.
func (w *world) commit(s *simServer) {
	if !s.up || s.paused || len(s.appends) == 0 || s.logDead || s.noSpace || s.stalled {
		return
	}
	n := len(s.appends)
	if !w.calm && !w.orderly {
		n = 1 + w.rng.IntN(n)
	}
	var c consensus.Commit
	for i := range s.appends[:n] {
		c.Add(&s.appends[i], true)
	}
	c.Seal(s.clock)
	if !c.Empty() {
		if err := s.log.Commit(&c.Batch); err != nil {
			// Whether it is there after a restart is unknown: the server says nothing more and goes.
			w.trace.add("commit of s%d failed: %v", s.id, err)
			s.logDead = true
			s.core.FailAll(err)
			w.take(s)
			w.crash(s)
			return
		}
	}
	c.Durable(s.clock)
	done := append([]consensus.Append(nil), s.appends[:n]...)
	s.appends = s.appends[n:]
	w.trace.add("commit s%d: %d appends", s.id, n)
	for _, a := range done {
		s.core.Appended(a.Tablet, a.Seq)
	}
	w.take(s)
}

// apply lets a server's state machine take the oldest run of entries.
func (w *world) apply(s *simServer) {
	if !s.up || s.paused || len(s.applies) == 0 {
		return
	}
	a := s.applies[0]
	s.applies = s.applies[1:]
	st := s.stores[a.Tablet]
	w.check.apply(s, st, a)
	st.entries = append(st.entries, a.Entries...)
	s.core.Applied(a.Tablet, nil)
	w.take(s)
}

// flush makes a store durable and lets the log be cut.
func (w *world) flush(s *simServer, t ident.TabletID) {
	if !s.up || s.paused {
		return
	}
	st := s.stores[t]
	if st == nil {
		return
	}
	if st.durable = len(st.entries); st.durable > 0 {
		s.core.Durable(t, st.entries[st.durable-1].Index)
		w.take(s)
	}
}

func (w *world) ask(s *simServer, kind string, t ident.TabletID, ts hybridtime.Timestamp) {
	if !s.up || s.paused {
		return
	}
	w.next++
	id := w.next
	a := &asked{server: s.id, tablet: t, kind: kind, ts: ts, floor: w.check.appliedAnywhere(t)}
	w.pending[id] = a
	w.trace.add("s%d %s #%d %s %s", s.id, kind, id, short(t), ts)
	switch kind {
	case "propose":
		a.payload = fmt.Sprintf("p%d", id)
		s.core.Propose(t, wal.KindWrite, []byte(a.payload), id)
	case "read":
		s.core.ReadIndex(t, id)
	case "close":
		s.core.CloseTimestamp(t, ts, id)
	case "transfer":
		s.core.Transfer(t, 0, id)
	}
	w.take(s)
}

// status is a replica's; the zero one where there is none.
func (s *simServer) status(t ident.TabletID) (st consensus.GroupStatus) {
	if v := s.views[t]; v != nil {
		st = v.Status()
	}
	return st
}

// logOf is a replica's log; nil where there is none.
func (s *simServer) logOf(t ident.TabletID) *wal.Log {
	if st := s.stores[t]; st != nil {
		return s.log.Log(st.number)
	}
	return nil
}

func (w *world) answer(s *simServer, d consensus.Done) {
	id := d.Ticket.(int)
	a := w.pending[id]
	if a == nil {
		w.check.failf("server %d answers #%d twice, or after its end", s.id, id)
		return
	}
	delete(w.pending, id)
	if w.onAnswer != nil {
		w.onAnswer(d)
	}
	w.trace.add("  s%d answers %s #%d: %s %s %v", s.id, a.kind, id, d.OpID, d.Timestamp, d.Err)
	if d.Err == nil {
		w.check.answered(s, a, d)
	}
}

func short(t ident.TabletID) string { return "T" + string(t[len(t)-1:]) }
