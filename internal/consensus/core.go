package consensus

import (
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// Core is the pure part of the host: the groups of one worker. Its methods are events; each may be called from one
// goroutine at a time only. Take settles the groups that events have touched and hands out what is to be done.
type Core struct {
	cfg     CoreConfig
	clock   Clock
	metrics *metrics

	groups map[[16]byte]*group
	// active are the groups that are ticked. A group that needs no ticks leaves the list (deactivate) and costs nothing: it is
	// quiet, or waits for its turn to campaign.
	active []*group
	// dirty are the groups that events have touched since the last Take.
	dirty []*group

	// now is the time since the host's start at this turn, for measurements alone.
	now time.Duration

	outOfSpace bool
	// retain is how many bytes of log a group keeps for members that lack them.
	retain     int64
	logStalled bool
	// fenced: this server's clock gives no timestamps out.
	fenced bool
	// blamed: most of the other servers say that this server's clock is off.
	blamed bool
	// handingOver counts the hand-overs under way by the Core's own accord.
	handingOver int
	// servers are the others.
	servers map[ident.ServerID]serverState
	// elections are those that wait for their turn, bringUp groups with a member that is back, closers quiet groups that wait for a
	// closed timestamp.
	elections elections
	bringUp   []*group
	closers   []*group
	out       Decisions

	plants
}

// CoreConfig is what a Core needs to know of its host.
type CoreConfig struct {
	HeartbeatTicks int
	ElectionTicks  int
	PreElection    bool
	// Quiesce lets groups with nothing to do rest; ServerLiveness lets what is known of servers decide when groups elect.
	Quiesce, ServerLiveness bool
	// Pairs are shared by the Cores of a server; nil: there is but one.
	Pairs *QuietPairs
	// PushCommit tells followers of a new commit index at once, and not only with the next entries or heartbeat.
	PushCommit bool
	plants
	Limits Limits
}

// Decisions is what a Core wants done. Messages go out in order per server and channel; appends are made durable in order;
// applies of one group are done in order.
type Decisions struct {
	Messages []Outgoing
	// Heartbeats carry no reads; they may wait for others to the same server.
	Heartbeats []OutgoingHeartbeat
	Appends    []Append
	Applies    []Apply
	Done       []Done
	Changes    []GroupStatus
	Failures   []Failure
	Refusals   []Refusal
	Needs      []Need
	Removals   []Removal
	// Questions are to be asked of other servers (Servers.Ask).
	Questions []Question
}

// Outgoing is a message to a replica on another server.
type Outgoing struct {
	To      ident.ServerID
	Address string
	Channel Channel
	Message *nyalav1.GroupMessage
}

// Append is what one group wants to stand in the log. The host answers with Core.Appended once it is durable, in order.
type Append struct {
	Tablet ident.TabletID
	Number ident.LocalNumber
	// Seq rises by one with each append of the group.
	Seq uint64
	// Entries supersede what the log holds at and above the first of them.
	Entries []*raftpb.Entry
	// HardState is nil where it hasn't changed.
	HardState *raftpb.HardState
	// MaxTimestamp is the highest timestamp in Entries: the durable clock mark must cover it.
	MaxTimestamp hybridtime.Timestamp
	// Promise must be under the durable promise mark.
	Promise hybridtime.Timestamp
	// CutSuffix, unless zero, is the first entry that is to be removed, behind all that was appended before.
	CutSuffix ident.Index
	// CutBehind, unless zero, is the entry through which the log is to be dropped.
	CutBehind ident.OpID
	// Bytes is about what the entries weigh.
	Bytes int
}

// Apply is a run of committed entries for the state machine. The host answers with Core.Applied.
type Apply struct {
	Tablet  ident.TabletID
	Number  ident.LocalNumber
	Entries []CommittedEntry
	Bytes   int
}

// Ticket names a request between a Core and who drives it; the Core only compares it.
type Ticket any

// Done is a request that has been decided.
type Done struct {
	Ticket Ticket
	Err    error
	// OpID and Timestamp are a proposal's; OpID.Index alone is a read's or a close's.
	OpID      ident.OpID
	Timestamp hybridtime.Timestamp
	// Config is a change's: the config that it has led to.
	Config *nyalav1.RaftConfig
}

// Failure is a replica that is done for.
type Failure struct {
	Tablet ident.TabletID
	Err    error
}

// View is a group's status for readers on any goroutine.
type View struct {
	p atomic.Pointer[GroupStatus]
}

// Status returns what the group looked like after its last step.
func (v *View) Status() GroupStatus { return *v.p.Load() }

// NewCore returns a core without groups.
func NewCore(cfg CoreConfig, clock Clock) *Core {
	return newCore(cfg, clock, makeMetrics())
}

func newCore(cfg CoreConfig, clock Clock, m *metrics) *Core {
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Pairs == nil {
		cfg.Pairs = NewQuietPairs()
	}
	c := &Core{
		cfg: cfg, clock: clock, metrics: m, groups: make(map[[16]byte]*group), servers: make(map[ident.ServerID]serverState),
		retain: int64(cfg.Limits.RetainBytes),
	}
	c.elections.core = c
	return c
}

// StartGroup brings up a group on its log.
func (c *Core) StartGroup(cfg GroupConfig, log GroupLog) (*View, error) {
	g, err := prepareGroup(c.cfg, c.clock, cfg, log)
	if err != nil {
		return nil, err
	}
	if err := c.adopt(g); err != nil {
		return nil, err
	}
	return &g.view, nil
}

// adopt takes a prepared group in.
func (c *Core) adopt(g *group) error {
	if _, ok := c.groups[g.id]; ok {
		return fmt.Errorf("tablet %s: its replica runs already", g.cfg.Tablet)
	}
	g.core = c
	c.groups[g.id] = g
	c.activate(g)
	if mayLead := g.barred() == causeNone; mayLead && g.cfg.CampaignNow {
		c.elections.begin(g, electionCreated)
	} else if c.cfg.ServerLiveness {
		c.elections.add(g, electionStarted, 0)
	}
	c.touch(g)
	return nil
}

// At says what time it is, as the time since the host's start. Only measurements go by it.
func (c *Core) At(now time.Duration) { c.now = now }

// StopGroup forgets a group; its waiting requests end with an error. Appends that were handed out may still become
// durable; nothing waits for them any more.
func (c *Core) StopGroup(tablet ident.TabletID) {
	g := c.find(tablet)
	if g == nil {
		return
	}
	if g.role == raft.StateLeader && g.err == nil {
		g.sayLeft()
	}
	g.finishAll(errStopped(tablet))
	g.stopped = true
	g.endQuiet()
	c.elections.leave(g)
	c.deactivate(g)
	delete(c.groups, g.id)
}

// Tick moves the time of the active groups on by one tick. Messages that have arrived should be given first.
func (c *Core) Tick() {
	// A group that fails leaves the list while it is walked: backwards, so that none is missed.
	for i := len(c.active) - 1; i >= 0; i-- {
		c.active[i].tick()
	}
	c.elections.tick()
	c.bringUpSome()
	c.tickCloses()
}

// Rests says whether time means nothing to any group here, so that Tick may be left out.
func (c *Core) Rests() bool {
	return len(c.active)+len(c.elections.line)+len(c.elections.asked)+len(c.bringUp)+len(c.closers) == 0
}

// Receive takes a message from another replica of a group. It says why it was left alone, if it was: "" otherwise.
func (c *Core) Receive(m *nyalav1.GroupMessage) (ignored string) {
	if len(m.GetTabletId()) != 16 {
		return ignoredMalformed
	}
	g := c.groups[[16]byte(m.GetTabletId())]
	if g == nil {
		return ignoredNoGroup
	}
	return g.receive(m)
}

// Propose asks for an entry in the group's log. Done brings its OpID and timestamp once it stands in the leader's log;
// whether it is committed is seen when it is applied, or not.
func (c *Core) Propose(tablet ident.TabletID, kind wal.Kind, payload []byte, t Ticket) {
	if g := c.running(tablet, t); g != nil {
		g.needed()
		g.proposals = append(g.proposals, proposal{kind, payload, t})
		c.touch(g)
	}
}

// ReadIndex asks for an index that is at or above every write that was acknowledged before.
func (c *Core) ReadIndex(tablet ident.TabletID, t Ticket) {
	g := c.running(tablet, t)
	if g == nil {
		return
	}
	if len(g.reads.waiting) >= c.cfg.Limits.MaxWaiting {
		c.done(Done{Ticket: t, Err: errTooBusy(tablet, "too many reads wait for the leader")})
		return
	}
	c.metrics.readRequests.Inc()
	if g.quiet.on && g.role == raft.StateLeader && c.planted(mistakeQuietReads) {
		c.done(Done{Ticket: t, OpID: ident.OpID{Term: g.term, Index: g.commit}})
		return
	}
	g.needed()
	g.reads.waiting = append(g.reads.waiting, t)
	c.touch(g)
}

// CloseTimestamp asks for an index such that who has applied through it holds every write at or below ts, for ever.
func (c *Core) CloseTimestamp(tablet ident.TabletID, ts hybridtime.Timestamp, t Ticket) {
	if g := c.running(tablet, t); g != nil {
		c.elections.urge(g)
		g.closeTimestamp(ts, t)
	}
}

// ChangeConfig asks the leader to change the group's members. It is done when the last config entry that this takes is applied
// here, or refused.
func (c *Core) ChangeConfig(tablet ident.TabletID, ch *ConfigChange, t Ticket) {
	if g := c.running(tablet, t); g != nil {
		g.needed()
		g.changeConfig(ch, t)
	}
}

// Members returns what the group's leader knows of its members.
func (c *Core) Members(tablet ident.TabletID) ([]MemberStatus, error) {
	if g := c.find(tablet); g != nil {
		return g.members()
	}
	return nil, errNoGroup(tablet)
}

// Transfer asks the leader to hand over to another voter; 0: to the one that is furthest on.
func (c *Core) Transfer(tablet ident.TabletID, to ident.ReplicaID, t Ticket) {
	if g := c.running(tablet, t); g != nil {
		g.needed()
		g.transferTo(to, t)
	}
}

// Campaign makes a replica ask for leadership now, if it may.
func (c *Core) Campaign(tablet ident.TabletID) {
	if g := c.find(tablet); g != nil && g.err == nil && g.barred() == causeNone {
		g.wake(wakeSend)
		g.elect.cause = electionAsked
		g.campaign()
		c.touch(g)
	}
}

// Cancel forgets a waiting request; nothing is said of it any more.
func (c *Core) Cancel(tablet ident.TabletID, t Ticket) {
	if g := c.find(tablet); g != nil {
		g.cancel(t)
	}
}

// Appended says that a group's appends through seq are durable.
func (c *Core) Appended(tablet ident.TabletID, seq uint64) {
	if g := c.find(tablet); g != nil && g.err == nil {
		g.appended(seq)
		c.touch(g)
	}
}

// Applied says that the oldest Apply of a group is done, or why the state machine can't go on.
func (c *Core) Applied(tablet ident.TabletID, err error) {
	g := c.find(tablet)
	if g == nil || g.err != nil {
		return
	}
	if err != nil {
		g.fail(fmt.Errorf("apply: %w", err))
		return
	}
	g.applied()
	c.touch(g)
}

// Unreachable says that an append message from a replica here to another was lost on the way out.
func (c *Core) Unreachable(tablet ident.TabletID, from, to ident.ReplicaID) {
	if g := c.find(tablet); g != nil && g.err == nil && !g.frozen && g.cfg.Replica == from {
		g.unreachable(to)
		c.touch(g)
	}
}

// Durable says that the state machine holds a group's log durably through index: the log may be cut behind it.
func (c *Core) Durable(tablet ident.TabletID, index ident.Index) {
	if g := c.find(tablet); g != nil && g.err == nil {
		g.durable = max(g.durable, index)
		g.maybeCut(1)
		c.touch(g)
	}
}

// SetOutOfSpace says whether the log has no room. While it has none proposals are refused; what raft was told to be
// under way stays under way.
func (c *Core) SetOutOfSpace(full bool) { c.outOfSpace = full }

// FailAll fails every group, as a failed log does.
func (c *Core) FailAll(err error) {
	for _, g := range c.byNumber() {
		g.fail(err)
	}
}

// Take settles what events have touched and returns what is to be done. The caller owns the result until the next event.
func (c *Core) Take() Decisions {
	for i := 0; i < len(c.dirty); i++ { // settling touches no other group
		g := c.dirty[i]
		g.dirty = false
		if !g.stopped {
			g.settle()
		}
	}
	c.dirty = c.dirty[:0]
	out := c.out
	c.out = Decisions{}
	return out
}

// find returns a group, nil if there is none.
func (c *Core) find(tablet ident.TabletID) *group {
	id, err := ident.Bytes(string(tablet))
	if err != nil {
		return nil
	}
	return c.groups[id]
}

// running returns the group if it takes requests; otherwise it answers the ticket.
func (c *Core) running(tablet ident.TabletID, t Ticket) *group {
	switch g := c.find(tablet); {
	case g == nil:
		c.done(Done{Ticket: t, Err: errNoGroup(tablet)})
		return nil
	case g.err != nil:
		c.done(Done{Ticket: t, Err: errFailed(tablet, g.err)})
		return nil
	default:
		return g
	}
}

func (c *Core) done(d Done) { c.out.Done = append(c.out.Done, d) }

func (c *Core) touch(g *group) {
	if !g.dirty {
		g.dirty = true
		c.dirty = append(c.dirty, g)
	}
}

func (c *Core) activate(g *group) {
	g.slot = len(c.active)
	c.active = append(c.active, g)
}

func (c *Core) deactivate(g *group) {
	if g.slot < 0 {
		return
	}
	last := c.active[len(c.active)-1]
	c.active[g.slot], last.slot = last, g.slot
	c.active[len(c.active)-1] = nil
	c.active = c.active[:len(c.active)-1]
	g.slot = -1
}
