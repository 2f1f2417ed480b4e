package wal

import (
	"fmt"
	"io"
	"log" //nolint:depguard // raft's own logger wants one, to be silent
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// peer is one raft node on a store, with raft's asynchronous storage writes: what must be durable waits in pending until
// the test lets the writer run.
type peer struct {
	id      uint64
	s       *rig
	node    *raft.RawNode
	applied uint64
	pending []*raftpb.Message // MsgStorageAppend
}

func (p *peer) start(t *testing.T) {
	l := p.s.Log(1)
	l.SetConfState(&raftpb.ConfState{Voters: []uint64{1, 2, 3}})
	node, err := raft.NewRawNode(&raft.Config{
		ID: p.id, ElectionTick: 10, HeartbeatTick: 1, Storage: l, Applied: p.applied, AsyncStorageWrites: true,
		MaxSizePerMsg: 4000, MaxInflightMsgs: 16, MaxCommittedSizePerReady: 4000, CheckQuorum: true, PreVote: true,
		Logger: &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)},
	})
	require.NoError(t, err)
	p.node, p.pending = node, nil
}

// write commits what is pending in one batch, as the group commit does, and returns the messages that were waiting for it.
func (p *peer) write(t *testing.T) []*raftpb.Message {
	var b Batch
	var out []*raftpb.Message
	for _, m := range p.pending {
		b.Append(1, m.GetEntries())
		if hs := (&raftpb.HardState{Term: m.Term, Vote: m.Vote, Commit: m.Commit}); m.Term != nil && !raft.IsEmptyHardState(hs) {
			b.SetHardState(1, hs)
		}
		out = append(out, m.GetResponses()...)
	}
	p.pending = nil
	require.NoError(t, p.s.Commit(&b))
	return out
}

// TestRaft runs three raft nodes on three stores each under a random schedule: messages lost and reordered, disks slow, nodes
// crashed at any step, logs compacted. All nodes must apply the same entries, and nothing that one applied is ever lost.
func TestRaft(t *testing.T) {
	for _, kind := range rigs {
		t.Run(kind.name, func(t *testing.T) {
			rounds := 5
			if raceEnabled {
				rounds = 2
			}
			total := 0
			for seed := range rounds {
				total += runRaft(t, kind.open, uint64(seed), 3000)
			}
			require.Greater(t, total, 10*rounds, "hardly anything was committed")
		})
	}
}

func runRaft(t *testing.T, open func(testing.TB) *rig, seed uint64, steps int) int {
	r := rand.New(rand.NewPCG(seed, 1))
	var peers []*peer
	for id := uint64(1); id <= 3; id++ {
		p := &peer{id: id, s: open(t)}
		defer func() { p.s.done() }()
		commit(t, p.s, func(b *Batch) { b.CreateGroup(1, tabletA, nil, ident.OpID{}) })
		p.start(t)
		peers = append(peers, p)
	}
	committed := map[uint64]*raftpb.Entry{}
	var net []*raftpb.Message
	proposed := 0
	deliver := func(m *raftpb.Message) {
		p := peers[m.GetTo()-1]
		_ = p.node.Step(m) // raft refuses what is out of date
	}
	ready := func(p *peer) {
		for p.node.HasReady() {
			for _, m := range p.node.Ready().Messages {
				switch m.GetTo() {
				case raft.LocalAppendThread:
					p.pending = append(p.pending, m)
				case raft.LocalApplyThread:
					for _, e := range m.GetEntries() {
						require.Equal(t, p.applied+1, e.GetIndex())
						p.applied = e.GetIndex()
						if old := committed[e.GetIndex()]; old != nil {
							require.Equal(t, old.GetTerm(), e.GetTerm(), "seed %d: entry %d", seed, e.GetIndex())
							require.Equal(t, old.GetData(), e.GetData())
						}
						committed[e.GetIndex()] = e
					}
					for _, a := range m.GetResponses() {
						deliver(a)
					}
				default:
					net = append(net, m)
				}
			}
		}
	}
	for step := range steps {
		p := peers[r.IntN(3)]
		switch x := r.IntN(100); {
		case x < 20:
			p.node.Tick()
		case x < 50:
			for range min(4, len(net)) {
				i := r.IntN(min(6, len(net)))
				m := net[i]
				net = append(net[:i], net[i+1:]...)
				if r.IntN(50) > 0 {
					deliver(m)
				}
			}
		case x < 75:
			// Answers to itself come back in the order in which they were made.
			for _, m := range p.write(t) {
				if m.GetTo() == p.id {
					deliver(m)
				} else {
					net = append(net, m)
				}
			}
		case x < 90:
			proposed++
			data := EncodePayload(KindWrite, hybridtime.Timestamp(step), fmt.Appendf(nil, "%d %0*d", proposed, r.IntN(1200), 0))
			_ = p.node.Propose(data)
		case x < 92:
			p.s.crash()
			hs, _, _ := p.s.Log(1).InitialState()
			p.applied = min(p.applied, hs.GetCommit())
			p.applied = max(p.applied, uint64(p.s.Log(1).Start().Index))
			p.start(t)
		case x < 94:
			l := p.s.Log(1)
			hs, _, _ := l.InitialState()
			// The slowest peer bounds what may go, as the host above sees to.
			to := min(p.applied, hs.GetCommit())
			for _, q := range peers {
				to = min(to, q.s.Log(1).HardState().GetCommit())
			}
			if term, err := l.TermOf(ident.Index(to)); err == nil && to > 8 {
				commit(t, p.s, func(b *Batch) { b.Compact(1, ident.OpID{Term: term, Index: ident.Index(to)}) })
			}
		}
		for _, q := range peers {
			ready(q)
		}
	}
	for _, p := range peers {
		l := p.s.Log(1)
		first, _ := l.FirstIndex()
		hs, _, _ := l.InitialState()
		entries, err := l.Entries(first, hs.GetCommit()+1, math.MaxUint64)
		require.NoError(t, err)
		for _, e := range entries {
			if want := committed[e.GetIndex()]; want != nil {
				require.Equal(t, want.GetTerm(), e.GetTerm())
				require.Equal(t, want.GetData(), e.GetData())
			}
		}
	}
	return len(committed)
}
