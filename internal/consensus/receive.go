package consensus

import (
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// Why a message was left alone.
const (
	ignoredMalformed    = "malformed"
	ignoredNoGroup      = "no_group"
	ignoredWrongReplica = "wrong_replica"
	ignoredFailed       = "failed"
	ignoredQueueFull    = "queue_full"
	ignoredLogFull      = "log_queue_full"
	ignoredResigning    = "resigning" // lost to a replica that cuts its log
	ignoredBarred       = "barred"    // would have made a replica lead that must not
)

var ignoredReasons = []string{
	ignoredMalformed, ignoredNoGroup, ignoredWrongReplica, ignoredFailed, ignoredQueueFull, ignoredLogFull, ignoredResigning, ignoredBarred,
}

// receive takes a message from another replica; it says why it was left alone, if it was.
func (g *group) receive(m *nyalav1.GroupMessage) (ignored string) {
	from := ident.ReplicaID(m.GetFrom())
	if ignored := g.deaf(from, ident.ReplicaID(m.GetTo())); ignored != "" {
		return ignored
	}
	switch k := m.GetKind().(type) {
	case *nyalav1.GroupMessage_Raft:
		rm, err := decodeRaft(k.Raft, m.GetFrom(), m.GetTo())
		if t, _ := raftType(k.Raft); t == raftpb.MsgProp && g.core.planted(mistakeForwards) {
			rm = new(raftpb.Message)
			err = proto.Unmarshal(k.Raft, rm)
		}
		if err != nil {
			return ignoredMalformed
		}
		return g.receiveRaft(rm, aside{
			promised: hybridtime.Timestamp(m.GetPromised()), held: ident.Index(m.GetHeld()), known: ident.Index(m.GetKnownCommit()),
		})
	case *nyalav1.GroupMessage_CommitNotice:
		return g.receiveNotice(from, k.CommitNotice)
	case *nyalav1.GroupMessage_CloseRequest:
		g.receiveCloseRequest(from, k.CloseRequest)
	case *nyalav1.GroupMessage_ClosePromise:
		if p := k.ClosePromise; !p.GetRefused() {
			g.countPromise(from, ident.Term(p.GetTerm()), hybridtime.Timestamp(p.GetTimestamp()))
		}
	case *nyalav1.GroupMessage_CloseQuestion:
		g.receiveCloseQuestion(from, hybridtime.Timestamp(k.CloseQuestion.GetTimestamp()))
	case *nyalav1.GroupMessage_Closed:
		g.receiveClosed(k.Closed)
	case *nyalav1.GroupMessage_EntryRefused:
		g.receiveRefused(from, k.EntryRefused)
	case *nyalav1.GroupMessage_NoReplica:
		g.receiveNoReplica(from)
	case *nyalav1.GroupMessage_ReplicaRemoved:
		g.receiveRemoved(k.ReplicaRemoved)
	case *nyalav1.GroupMessage_ConfigCommitted:
		g.receiveConfigCommitted(m.GetFrom(), k.ConfigCommitted)
	case *nyalav1.GroupMessage_QuietOffer:
		g.receiveQuietOffer(from, k.QuietOffer)
	case *nyalav1.GroupMessage_QuietAnswer:
		g.receiveQuietAnswer(from, k.QuietAnswer)
	case *nyalav1.GroupMessage_NotQuiet:
		g.receiveNotQuiet(k.NotQuiet)
	case *nyalav1.GroupMessage_Leave:
		g.receiveLeave(from, k.Leave)
	default:
		return ignoredMalformed
	}
	return ""
}

// deaf says why a message from one replica to another is nothing for this one; "": it is.
func (g *group) deaf(from, to ident.ReplicaID) (ignored string) {
	switch {
	case g.err != nil:
		return ignoredFailed
	case g.frozen:
		return ignoredResigning
	case to != g.cfg.Replica || from == 0 || from == g.cfg.Replica:
		return ignoredWrongReplica
	default:
		return ""
	}
}

// aside is what goes with a message of raft's that raft doesn't know of.
type aside struct {
	promised hybridtime.Timestamp // in a vote answer
	held     ident.Index          // in a heartbeat: what every member's log holds
	known    ident.Index          // in an answer: what its sender knows to be committed
	notice   bool                 // an append without entries that wants no answer
}

func (g *group) receiveRaft(m *raftpb.Message, with aside) (ignored string) {
	// A message of a later term would end the one in which this replica may cut its log: that comes first (I11).
	if ident.Term(m.GetTerm()) > g.term && movesTerm(m) && g.goIfMust() && g.frozen {
		return ignoredResigning
	}
	if m.GetType() == raftpb.MsgVoteResp {
		g.takeVote(m, with.promised) // by one more vote a leader may be barred no more
	}
	if wouldLead(m) && g.barred() != causeNone {
		return ignoredBarred
	}
	g.hears(m)
	switch m.GetType() {
	case raftpb.MsgVote, raftpb.MsgPreVote:
		g.tellConfigCommitted(m)
	case raftpb.MsgApp:
		g.heard(m)
		g.refuseAhead(m)
		g.acknowledged.wanted = g.acknowledged.wanted || !with.notice
	case raftpb.MsgAppResp:
		if g.saysTermAlone(m) {
			return ""
		}
		g.answered(m, with.known)
	case raftpb.MsgHeartbeatResp:
		g.answered(m, with.known)
	case raftpb.MsgHeartbeat:
		g.heard(m)
		g.heldByAll = max(g.heldByAll, with.held)
	default:
	}
	// What raft drops (a message of an unknown replica, say) is as good as lost on the way.
	_ = g.step(m)
	g.core.touch(g)
	return ""
}

// saysTermAlone recognizes the answer that raft gives to a leader of an earlier term: it acknowledges nothing and only shows
// its own term. When it arrives late, at the same server leading in that very term now, raft takes its index 0 for an
// acknowledgement of the empty log and sends from the beginning on, which a log that was cut can't: the follower would get
// nothing any more. What it has to say is known by then, so it is left alone.
func (g *group) saysTermAlone(m *raftpb.Message) bool {
	if m.GetIndex() != 0 || m.GetReject() {
		return false
	}
	g.drain()
	return ident.Term(m.GetTerm()) <= g.term
}

// movesTerm says whether raft moves to the message's term if that is a later one.
func movesTerm(m *raftpb.Message) bool {
	return m.GetType() != raftpb.MsgPreVote && (m.GetType() != raftpb.MsgPreVoteResp || m.GetReject())
}

// takeVote notes the promise in a vote, before raft counts it (I4).
func (g *group) takeVote(m *raftpb.Message, promised hybridtime.Timestamp) {
	if m.GetReject() {
		return
	}
	if term := ident.Term(m.GetTerm()); term >= g.voteTerm {
		if term > g.voteTerm {
			g.voteTerm, g.votes = term, nil
		}
		if g.votes == nil {
			g.votes = make(map[uint64]hybridtime.Timestamp)
		}
		g.votes[m.GetFrom()] = promised
		g.votePromised = g.promisedByQuorum()
	}
}

// promisedByQuorum is the lowest T such that voters who have promised no more than T were enough to be elected by: each closed
// timestamp is at or below it, as those who promised it and any such quorum share a voter. So a vote that was not needed, from a
// server whose clock is far ahead, keeps nobody from writing. This replica's own promise counts by itself (floor).
func (g *group) promisedByQuorum() hybridtime.Timestamp {
	promises := slices.Sorted(maps.Values(g.votes))
	for _, ts := range promises {
		in := map[uint64]bool{uint64(g.cfg.Replica): true}
		for id, p := range g.votes {
			if p <= ts {
				in[id] = true
			}
		}
		if g.voters.VoteResult(in) == quorum.VoteWon {
			return ts
		}
	}
	return promises[len(promises)-1]
}

// send puts a raft message on its way to another replica.
func (g *group) send(m *raftpb.Message) {
	if t := m.GetType(); (t == raftpb.MsgHeartbeat || t == raftpb.MsgHeartbeatResp) && len(m.GetContext()) == 0 {
		if t == raftpb.MsgHeartbeatResp || !g.heartbeatLater(ident.ReplicaID(m.GetTo())) {
			g.sendHeartbeat(m)
		}
		return
	}
	gm := &nyalav1.GroupMessage{}
	ch := Control
	g.sends()
	switch m.GetType() {
	case raftpb.MsgApp:
		if !g.holdBack(m) {
			g.sendAppend(m)
		}
		return
	case raftpb.MsgAppResp:
		if ch = Data; !m.GetReject() && m.GetIndex() != 0 { // without an index it shows its term alone
			g.sendAck(m)
			return
		}
	case raftpb.MsgPreVoteResp:
		g.core.elections.answered(g, m)
	case raftpb.MsgVoteResp:
		g.core.elections.answered(g, m)
		gm.Promised = uint64(g.promised)
		if g.core.planted(mistakePromiseNotInVote) {
			gm.Promised = 0
		}
	default:
	}
	g.sendRaft(ch, m, gm)
}

// sendRaft puts a message in raft's own form on its way.
func (g *group) sendRaft(ch Channel, m *raftpb.Message, gm *nyalav1.GroupMessage) {
	b, err := proto.Marshal(m)
	if err != nil {
		g.fail(fmt.Errorf("encode %s to replica %d: %w", m.GetType(), m.GetTo(), err))
		return
	}
	g.core.metrics.sent(m)
	gm.Kind = &nyalav1.GroupMessage_Raft{Raft: b}
	g.sendOn(ch, ident.ReplicaID(m.GetTo()), gm)
}

// sendGroup puts one of the host's own messages on its way.
func (g *group) sendGroup(to ident.ReplicaID, m *nyalav1.GroupMessage) {
	g.core.metrics.messagesOther.Inc()
	g.sendOn(Control, to, m)
}

func (g *group) sendOn(ch Channel, to ident.ReplicaID, m *nyalav1.GroupMessage) {
	if p := g.peer(to); p != nil { // otherwise, not in the config that this replica knows, it is as good as lost
		g.sendTo(p, ch, m)
	}
}

func (g *group) sendTo(p *nyalav1.Peer, ch Channel, m *nyalav1.GroupMessage) {
	m.TabletId, m.From, m.To = g.id[:], uint64(g.cfg.Replica), p.GetReplicaId()
	g.core.out.Messages = append(g.core.out.Messages, Outgoing{
		To: ident.ServerID(p.GetServerId()), Address: p.GetAddress(), Channel: ch, Message: m,
	})
}

// decodeRaft reads a raft message and checks what raft takes on trust: that it is one that replicas send each other, names
// the same replicas as its envelope, has a term, and that its entries follow each other.
func decodeRaft(b []byte, from, to uint64) (*raftpb.Message, error) {
	m := new(raftpb.Message)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, err
	}
	switch m.GetType() {
	case raftpb.MsgApp, raftpb.MsgAppResp, raftpb.MsgHeartbeat, raftpb.MsgHeartbeatResp, raftpb.MsgVote, raftpb.MsgVoteResp,
		raftpb.MsgPreVote, raftpb.MsgPreVoteResp, raftpb.MsgTimeoutNow:
	default:
		return nil, fmt.Errorf("message type %s between replicas", m.GetType())
	}
	if m.GetFrom() != from || m.GetTo() != to {
		return nil, fmt.Errorf("from %d to %d in an envelope from %d to %d", m.GetFrom(), m.GetTo(), from, to)
	}
	if m.GetTerm() == 0 {
		return nil, fmt.Errorf("%s without a term", m.GetType())
	}
	if n := len(m.GetContext()); n != 0 && n != 8 && (m.GetType() == raftpb.MsgHeartbeat || m.GetType() == raftpb.MsgHeartbeatResp) {
		return nil, fmt.Errorf("%s with a context of %d bytes", m.GetType(), n)
	}
	if len(m.GetEntries()) > 0 && m.GetType() != raftpb.MsgApp {
		return nil, fmt.Errorf("%s with entries", m.GetType())
	}
	term := m.GetLogTerm()
	for i, e := range m.GetEntries() {
		if e == nil || e.GetIndex() != m.GetIndex()+1+uint64(i) || e.GetTerm() < term || e.GetTerm() > m.GetTerm() {
			return nil, fmt.Errorf("entry %d.%d at place %d behind %d.%d", e.GetTerm(), e.GetIndex(), i, m.GetLogTerm(), m.GetIndex())
		}
		term = e.GetTerm()
	}
	return m, nil
}

// raftType reads the type of an encoded raft message without decoding the rest; ok is false if it can't.
func raftType(b []byte) (t raftpb.MessageType, ok bool) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, false
		}
		b = b[n:]
		if num == 1 && typ == protowire.VarintType {
			v, n := protowire.ConsumeVarint(b)
			return raftpb.MessageType(v), n > 0
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return 0, false
		}
		b = b[n:]
	}
	return raftpb.MsgHup, true
}
