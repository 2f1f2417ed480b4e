package consensus

import (
	"errors"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// proposal is an entry that a caller wants in the log.
type proposal struct {
	kind    wal.Kind
	payload []byte
	ticket  Ticket
}

// runProposals stamps and appends what waits, in batches of about a message's size, or refuses it. It says whether raft
// has been stepped.
func (g *group) runProposals() bool {
	if len(g.proposals) == 0 {
		return false
	}
	if err := g.refusesProposals(); err != nil {
		for _, p := range g.proposals {
			g.proposed(p, Done{Err: err})
		}
		g.proposals = nil
		return false
	}
	batch, bytes := 0, 0
	for batch < len(g.proposals) && (batch == 0 || bytes+len(g.proposals[batch].payload) <= g.core.cfg.Limits.MaxMessageBytes) {
		bytes += len(g.proposals[batch].payload)
		batch++
	}
	ps := g.proposals[:batch]
	if g.proposals = g.proposals[batch:]; len(g.proposals) == 0 {
		g.proposals = nil
	}
	g.appendProposals(ps)
	return true
}

// refusesProposals says why this replica takes no proposal now, if so.
func (g *group) refusesProposals() error {
	switch {
	case g.role == raft.StateFollower && g.lead != 0 && g.core.planted(mistakeForwards):
		return nil
	case g.role != raft.StateLeader:
		return g.notLeader()
	case !g.ready():
		return status.New(status.ServiceUnavailable, "tablet %s: the leader of term %d has not committed an entry of it yet; try again",
			g.cfg.Tablet, g.term)
	case g.barred() != causeNone && g.barred() != causeLogStalled: // then raft refuses while it hands over
		return g.clockRefuses()
	case g.stalled() != "":
		return errStalled(g.cfg.Tablet, g.stalled())
	case g.core.outOfSpace:
		return status.New(status.OutOfSpace, "tablet %s: no space left for this server's log; make room in its folder", g.cfg.Tablet)
	}
	return nil
}

// clockRefuses is the error that sends a caller elsewhere because of this server's clock: with the voter that leadership is being
// handed to, if it is.
func (g *group) clockRefuses() error {
	var e *status.Error
	switch _, err := g.core.clock.Now(); {
	case err != nil:
		e = status.Wrap(status.Clock, err, "tablet %s: its leader takes no writes", g.cfg.Tablet)
	case g.barred() == causeQuarantined:
		e = status.New(status.Clock, "tablet %s: its leader takes no writes: %s", g.cfg.Tablet, g.quarantine.why)
	case g.barred() == causeBlamed:
		e = status.New(status.Clock, "tablet %s: its leader takes no writes: most other servers say that this server's clock is off", g.cfg.Tablet)
	default:
		e = status.New(status.Clock, "tablet %s: its leader takes no writes: this server's clock is fenced", g.cfg.Tablet)
	}
	e.Term = uint64(g.term)
	if p := g.peer(g.transfer.to); p != nil {
		e.Leader = proto.CloneOf(p)
	}
	return e
}

// appendProposals stamps the proposals and gives them to raft in one step: index and timestamp are given together, so
// both rise together (I3).
func (g *group) appendProposals(ps []proposal) {
	floor := g.floor()
	ents := make([]*raftpb.Entry, 0, len(ps))
	dones := make([]Done, 0, len(ps))
	taken := make([]proposal, 0, len(ps))
	for _, p := range ps {
		ts, err := g.stampAbove(floor)
		if err != nil {
			g.proposed(p, Done{Err: err})
			continue
		}
		floor = ts
		ents = append(ents, &raftpb.Entry{Data: wal.EncodePayload(p.kind, ts, p.payload)})
		dones = append(dones, Done{
			OpID:      ident.OpID{Term: g.term, Index: g.last + ident.Index(len(ents))},
			Timestamp: ts,
		})
		taken = append(taken, p)
	}
	if len(ents) == 0 {
		return
	}
	err := g.step(&raftpb.Message{Type: raftpb.MsgProp.Enum(), From: new(uint64(g.cfg.Replica)), Entries: ents})
	switch {
	case g.err != nil:
		err = errFailed(g.cfg.Tablet, g.err)
	case errors.Is(err, raft.ErrProposalDropped) && g.transferee() != 0:
		err = status.New(status.ServiceUnavailable, "tablet %s: leadership is being handed over; try again", g.cfg.Tablet)
	case errors.Is(err, raft.ErrProposalDropped):
		err = errTooBusy(g.cfg.Tablet, "too much is written and not applied yet")
	case err != nil:
		err = status.Wrap(status.ServiceUnavailable, err, "tablet %s: propose", g.cfg.Tablet)
	}
	for i, p := range taken {
		if err != nil {
			dones[i] = Done{Err: err}
		}
		g.proposed(p, dones[i])
	}
}

// floor is what every new timestamp must lie above (I4): the last one in the log, the promises in the votes that made this
// replica leader, and its own promise.
func (g *group) floor() hybridtime.Timestamp {
	floor := max(g.stamps.last(), g.appliedTS)
	if g.core.planted(mistakeFloorForgotten) {
		return floor
	}
	floor = max(floor, g.promised)
	if g.voteTerm == g.term {
		floor = max(floor, g.votePromised)
	}
	return floor
}

// stampAbove reads the clock for a timestamp above floor. The clock is moved past the floor only within its guard:
// otherwise a timestamp that came from a clock far ahead would be outdone here.
func (g *group) stampAbove(floor hybridtime.Timestamp) (hybridtime.Timestamp, error) {
	ts, err := g.core.clock.Now()
	if err == nil && ts <= floor {
		if err = g.core.clock.Update(floor); err == nil {
			ts, err = g.core.clock.Now()
		}
	}
	if err != nil {
		if status.CodeOf(err) == status.Clock {
			return 0, err
		}
		return 0, status.Wrap(status.Clock, err, "tablet %s: no timestamp can be given", g.cfg.Tablet)
	}
	if err := g.core.clock.CheckAhead(ts); err != nil {
		g.outran = ts // nobody would take it: others are to lead, whose clocks are right
		return 0, status.Wrap(status.Clock, err, "tablet %s: this server's clock has run ahead of itself", g.cfg.Tablet)
	}
	if ts <= floor {
		return 0, status.New(status.Clock, "tablet %s: the clock stands at %s, not above %s in the log", g.cfg.Tablet, ts, floor)
	}
	return ts, nil
}

// proposed answers a proposal and counts it.
func (g *group) proposed(p proposal, d Done) {
	d.Ticket = p.ticket
	g.core.metrics.proposed(d.Err)
	g.core.done(d)
}
