package consensus

import (
	"go.etcd.io/raft/v3/quorum"
	"go.etcd.io/raft/v3/raftpb"
)

// mistake is a fault that a test can plant in a Core when the package is built with the tag planted, to show that the
// checks of the simulated cluster can fail. Without the tag planted() is false and the branches are compiled away.
type mistake uint32

const (
	mistakeVoteRequestEarly mistake = 1 << iota
	mistakeAnswerEarly
	mistakePromiseNotInVote
	mistakePromiseNotDurable
	mistakeCloseOnMinority
	mistakeCloseBeforeOwnTerm
	mistakePromiseAfterTerm
	mistakeFloorForgotten
	mistakeReadWithoutRound
	mistakeCountsItselfEarly
	mistakeLeadsOn
	mistakeCutsCounted
	mistakeCutsInherited
	mistakeAsksFirst
	mistakeBatchLosesOne
	mistakeNoticeNotResent
	mistakeForwards
	mistakeLearnerVotes
	mistakeConfigBeforeRestart
	mistakeChangeBeforeOwnTerm
	mistakePromotesEarly
	mistakeQuietReads
	mistakeRestsBehind
	mistakeLeaderNotForgotten
	mistakeListLosesOne
	mistakeNotBroughtUp
	mistakeVoteForgotten
	mistakeChangeStaysPending
	mistakeCopyForgetsVote
	mistakeCopyForgetsLog
	mistakeCopyOutOfDate
	mistakeCommitsOldTerm
)

// plantCommit has a leader's messages give out as committed what a majority holds, of whatever term it is: raft's library counts
// entries of the leader's own term alone, so this mistake is planted behind it.
func (g *group) plantCommit(msgs []*raftpb.Message) {
	status := g.node.Status()
	held := make(heldIndexes, len(status.Progress))
	for id, p := range status.Progress {
		held[id] = quorum.Index(p.Match)
	}
	majority := uint64(status.Config.Voters.CommittedIndex(held))
	for _, m := range msgs {
		switch m.GetType() {
		case raftpb.MsgApp:
			m.Commit = new(max(m.GetCommit(), majority))
		case raftpb.MsgHeartbeat:
			m.Commit = new(max(m.GetCommit(), min(majority, uint64(held[m.GetTo()]))))
		default:
		}
	}
}

// heldIndexes are the last indexes that members' logs are known to hold.
type heldIndexes map[uint64]quorum.Index

// AckedIndex implements quorum.AckedIndexer.
func (h heldIndexes) AckedIndex(id uint64) (quorum.Index, bool) {
	at, ok := h[id]
	return at, ok
}
