package consensus

import (
	"bytes"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// Heartbeat is a leader's heartbeat to one replica that carries no read, or the answer to one. There are many of them and they
// are alike, so they don't go as raft's own messages: a [HeartbeatBatcher] puts those to one server together.
type Heartbeat struct {
	Tablet   [16]byte
	From, To ident.ReplicaID
	Term     ident.Term
	// Commit is what the receiver may take for committed; in an answer: what the sender knows to be committed.
	Commit ident.Index
	// Held: every member's log holds the entries through this one. Not in answers.
	Held ident.Index
	// Sent says when the batch that brought a heartbeat left, by its sender's clock; the answer brings it back. 0: unknown.
	Sent   int64
	Answer bool
}

// OutgoingHeartbeat is a heartbeat, or an answer, to a replica on another server.
type OutgoingHeartbeat struct {
	To      ident.ServerID
	Address string
	Heartbeat
}

// Message is the heartbeat as a message of its own, for servers that don't batch.
func (h *Heartbeat) Message() (*nyalav1.GroupMessage, error) {
	b, err := proto.Marshal(h.raft())
	if err != nil {
		return nil, err
	}
	m := &nyalav1.GroupMessage{
		TabletId: bytes.Clone(h.Tablet[:]), From: uint64(h.From), To: uint64(h.To), Kind: &nyalav1.GroupMessage_Raft{Raft: b},
	}
	if h.Answer {
		m.KnownCommit = uint64(h.Commit)
	} else {
		m.Held = uint64(h.Held)
	}
	return m, nil
}

// raft is the heartbeat in raft's form.
func (h *Heartbeat) raft() *raftpb.Message {
	m := &raftpb.Message{From: new(uint64(h.From)), To: new(uint64(h.To)), Term: new(uint64(h.Term))}
	if h.Answer {
		m.Type = raftpb.MsgHeartbeatResp.Enum()
	} else {
		m.Type, m.Commit = raftpb.MsgHeartbeat.Enum(), new(uint64(h.Commit))
	}
	return m
}

// Heartbeat takes a heartbeat, or an answer to one. It says why it was left alone, if it was: "" otherwise.
func (c *Core) Heartbeat(h Heartbeat) (ignored string) {
	g := c.groups[h.Tablet]
	switch {
	case g == nil:
		return ignoredNoGroup
	case h.Term == 0:
		return ignoredMalformed
	}
	if ignored := g.deaf(h.From, h.To); ignored != "" {
		return ignored
	}
	m := h.raft()
	if h.Answer {
		return g.receiveRaft(m, aside{known: h.Commit})
	}
	g.heartbeatSent = h.Sent
	return g.receiveRaft(m, aside{held: h.Held})
}

// sendHeartbeat puts a heartbeat of raft's, or an answer to one, on its way, if it carries no read.
func (g *group) sendHeartbeat(m *raftpb.Message) {
	to := ident.ReplicaID(m.GetTo())
	p := g.peer(to)
	g.sends()
	if p == nil {
		return // not in the config that this replica knows: as good as lost
	}
	h := Heartbeat{Tablet: g.id, From: g.cfg.Replica, To: to, Term: ident.Term(m.GetTerm())}
	if m.GetType() == raftpb.MsgHeartbeatResp {
		h.Answer, h.Commit, h.Sent = true, g.tellCommitted(), g.heartbeatSent
		g.heartbeatSent = 0
	} else {
		// Followers may cut their logs behind what every member holds, which only the leader knows.
		h.Commit, h.Held = ident.Index(m.GetCommit()), g.computeHeld()
		if g.core.planted(mistakeNoticeNotResent) {
			h.Commit = min(h.Commit, g.follower(to).known)
		}
		g.core.metrics.noOpHeartbeats.Inc()
	}
	g.core.metrics.sent(m)
	g.core.out.Heartbeats = append(g.core.out.Heartbeats, OutgoingHeartbeat{
		To: ident.ServerID(p.GetServerId()), Address: p.GetAddress(), Heartbeat: h,
	})
}
