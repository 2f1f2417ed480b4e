package replica

import (
	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// maxProposals bounds the writes under way at one replica, those whose callers have gone included.
const maxProposals = 1 << 14

// requestKey names a tracked request.
type requestKey struct {
	client [16]byte
	seq    uint64
}

func keyOf(id *nyalav1.StoredRequestId) requestKey {
	key := requestKey{seq: id.GetSeqNo()}
	copy(key.client[:], id.GetClientId())
	return key
}

// proposal is a write whose outcome somebody waits for.
type proposal struct {
	key     requestKey
	tracked bool
	passed  *passed    // on to the leader; nil: it is proposed here
	op      ident.OpID // where it stands in the log; zero until the host has said so
	// older was given the same index in a lower term. Whose entry it is that is applied there decides for both.
	older *proposal
	ended bool // guarded by the replica's mu; result and err are fixed before done is closed

	done   chan struct{}
	result tablet.Result
	err    error
}

// proposals are the writes under way at one replica: it knows for each who is to be told, and by what it ends (I3). It is
// guarded by the replica's mu.
type proposals struct {
	// tracked holds those with a request id until they end: whoever asks again meanwhile waits for the same one.
	tracked map[requestKey]*proposal
	// placed holds those that have a place in the log, the youngest first.
	placed map[ident.Index]*proposal
	n      int
}

func newProposals() proposals {
	return proposals{tracked: map[requestKey]*proposal{}, placed: map[ident.Index]*proposal{}}
}

// begin takes a write in; nil: there are too many.
func (ps *proposals) begin(key requestKey, tracked bool, to *passed) *proposal {
	if ps.n >= maxProposals {
		return nil
	}
	ps.n++
	p := &proposal{key: key, tracked: tracked, passed: to, done: make(chan struct{})}
	if tracked {
		ps.tracked[key] = p
	}
	return p
}

// place notes where a proposal stands in the log. It comes before the entry there can be applied.
func (ps *proposals) place(p *proposal, op ident.OpID) {
	if p.ended {
		return
	}
	p.op, p.older = op, ps.placed[op.Index]
	ps.placed[op.Index] = p
}

// applied ends the proposals at the index of an entry that was applied: the entry's own with its outcome, others, whose
// place it has taken, with lost. That entry is committed, so theirs never will be.
func (ps *proposals) applied(op ident.OpID, result tablet.Result, err error, lost func(*proposal) error) {
	p := ps.placed[op.Index]
	if p == nil {
		return
	}
	delete(ps.placed, op.Index)
	for ; p != nil; p = p.older {
		if p.op == op {
			ps.end(p, result, err)
		} else {
			ps.end(p, tablet.Result{}, lost(p))
		}
	}
}

// decided ends the proposal of a request that an applied entry has decided, whoever put that entry into the log (I2).
func (ps *proposals) decided(id *nyalav1.StoredRequestId, result tablet.Result, err error) {
	if id == nil || len(ps.tracked) == 0 {
		return
	}
	if p := ps.tracked[keyOf(id)]; p != nil {
		ps.end(p, result, err)
	}
}

// deposed ends the tracked proposals of leaderships that are over: those before term, and those of term too if it isn't led
// here; those that were passed on to a leader of a term before too, unless it has taken them. Their entries may still be committed, by another leader or under this one again, and then the request's record gives
// the answer: who asks again finds it. An untracked proposal can't be asked about again, so it waits for what its place in
// the log becomes.
func (ps *proposals) deposed(term ident.Term, leads bool, err func() error) {
	for index, p := range ps.placed {
		var kept *proposal
		last := &kept
		for ; p != nil; p = p.older {
			if p.tracked && (p.op.Term < term || p.op.Term == term && !leads) {
				ps.end(p, tablet.Result{}, err())
				continue
			}
			*last = p
			last = &p.older
		}
		*last = nil
		if kept == nil {
			delete(ps.placed, index)
		} else {
			ps.placed[index] = kept
		}
	}
	for _, p := range ps.tracked {
		if p.passed != nil && p.passed.answer == nil && p.passed.term < term {
			ps.end(p, tablet.Result{}, err())
		}
	}
}

// endAll ends everything.
func (ps *proposals) endAll(err error) {
	for _, p := range ps.placed {
		for ; p != nil; p = p.older {
			ps.end(p, tablet.Result{}, err)
		}
	}
	clear(ps.placed)
	for _, p := range ps.tracked {
		ps.end(p, tablet.Result{}, err)
	}
}

// end gives a proposal its outcome; the first one counts. If it still stands in placed it leaves that with its index.
func (ps *proposals) end(p *proposal, result tablet.Result, err error) {
	if p.ended {
		return
	}
	p.ended, p.result, p.err = true, result, err
	close(p.done)
	ps.n--
	if p.tracked && ps.tracked[p.key] == p {
		delete(ps.tracked, p.key)
	}
}

// known is a proposal that has ended before it began: its request was answered earlier.
func known(result tablet.Result, to *passed) *proposal {
	p := &proposal{ended: true, passed: to, done: make(chan struct{}), result: result}
	close(p.done)
	return p
}

func (r *Replica) lost(p *proposal) error {
	return status.New(status.Aborted, "tablet %s: write %s was overtaken by a new leader and not applied", r.id, p.op)
}
