package consensus

import (
	"fmt"
	"slices"

	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// GroupLog is a group's durable log as raft reads it.
type GroupLog interface {
	raft.Storage
	// SetConfState sets the config that InitialState returns.
	SetConfState(*raftpb.ConfState)
	// Behind is the lowest index, of those up to upTo, behind which at most so many bytes of entries lie; upTo if there is none.
	Behind(bytes int64, upTo ident.Index) ident.Index
}

// startLog is a GroupLog whose initial state fits the state machine. The commit index is written with the next append
// only, so after a restart it may lag behind what is applied, and what is applied is committed: raft would refuse to
// start on the pair.
type startLog struct {
	GroupLog
	applied ident.Index
	// commit is known committed, whatever the log says; 0 at a start.
	commit ident.Index
	// termBefore makes the node begin in the term before, which a test has planted.
	termBefore bool
}

// InitialState returns the durable state with the commit index raised to what is applied, and with a term that isn't below
// the last entry's, as is the case in a log that begins with a copy: this replica has never voted in that term.
func (l startLog) InitialState() (*raftpb.HardState, *raftpb.ConfState, error) {
	hs, cs, err := l.GroupLog.InitialState()
	if err != nil {
		return nil, nil, err
	}
	last, err := l.LastIndex()
	if err != nil {
		return nil, nil, err
	}
	lastTerm, err := l.Term(last)
	if err != nil {
		return nil, nil, err
	}
	term, vote, commit := hs.GetTerm(), hs.GetVote(), max(hs.GetCommit(), uint64(l.applied), uint64(l.commit))
	if term < lastTerm {
		term, vote = lastTerm, 0
	}
	if l.termBefore {
		term, vote = term-1, 0
	}
	return &raftpb.HardState{Term: &term, Vote: &vote, Commit: &commit}, cs, nil
}

// check says why raft could not start on this log, if so.
func (l startLog) check() error {
	first, err := l.FirstIndex()
	if err != nil {
		return fmt.Errorf("first index: %w", err)
	}
	last, err := l.LastIndex()
	if err != nil {
		return fmt.Errorf("last index: %w", err)
	}
	switch a := uint64(l.applied); {
	case a+1 < first:
		return fmt.Errorf("the store has applied through %d, but the log begins at %d: entries between are gone", a, first)
	case a > last:
		return fmt.Errorf("the store has applied through %d, but the log ends at %d: entries it rests on are gone", a, last)
	}
	hs, _, err := l.GroupLog.InitialState()
	if err != nil {
		return fmt.Errorf("initial state: %w", err)
	}
	if c := hs.GetCommit(); c > last {
		return fmt.Errorf("the log is known committed through %d, but ends at %d: committed entries are gone", c, last)
	}
	return nil
}

// confState is a config in raft's form. A learner that stands among the outgoing voters is one only once the joint config
// is left. The outgoing peers stand among the outgoing voters alone.
func confState(c *nyalav1.RaftConfig) *raftpb.ConfState {
	cs := &raftpb.ConfState{AutoLeave: new(bool), VotersOutgoing: slices.Clone(c.GetOutgoingVoters())}
	for _, p := range c.GetPeers() {
		switch id := p.GetReplicaId(); {
		case !p.GetLearner():
			cs.Voters = append(cs.Voters, id)
		case slices.Contains(cs.VotersOutgoing, id):
			cs.LearnersNext = append(cs.LearnersNext, id)
		default:
			cs.Learners = append(cs.Learners, id)
		}
	}
	return cs
}

// raftPanic is what raft's panics through its logger carry.
type raftPanic string

// silentLogger drops raft's log lines: a Core writes none. Its panics are caught where the node is stepped, and fail the
// replica.
type silentLogger struct{}

func (silentLogger) Debug(...any)            {}
func (silentLogger) Debugf(string, ...any)   {}
func (silentLogger) Info(...any)             {}
func (silentLogger) Infof(string, ...any)    {}
func (silentLogger) Warning(...any)          {}
func (silentLogger) Warningf(string, ...any) {}
func (silentLogger) Error(...any)            {}
func (silentLogger) Errorf(string, ...any)   {}

func (silentLogger) Fatal(v ...any)            { stopRaft(fmt.Sprint(v...)) }
func (silentLogger) Fatalf(f string, v ...any) { stopRaft(fmt.Sprintf(f, v...)) }
func (silentLogger) Panic(v ...any)            { stopRaft(fmt.Sprint(v...)) }
func (silentLogger) Panicf(f string, v ...any) { stopRaft(fmt.Sprintf(f, v...)) }

// stopRaft leaves raft's step, which counts on these methods not to return. It is caught around each call into raft.
func stopRaft(why string) {
	panic(raftPanic(why)) //nolint:forbidigo // the contract of raft's logger
}
