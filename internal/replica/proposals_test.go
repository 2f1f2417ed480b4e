package replica

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/tablet"
)

var (
	errLost    = errors.New("lost")
	errDeposed = errors.New("deposed")
	errEnd     = errors.New("end")
)

func lost(*proposal) error { return errLost }
func deposed() error       { return errDeposed }

func op(term ident.Term, index ident.Index) ident.OpID { return ident.OpID{Term: term, Index: index} }

func (ps *proposals) open(t *testing.T, client byte, tracked bool, at ident.OpID) *proposal {
	t.Helper()
	p := ps.begin(requestKey{client: [16]byte{client}}, tracked, nil)
	require.NotNil(t, p)
	if at != (ident.OpID{}) {
		ps.place(p, at)
	}
	return p
}

func wantOpen(t *testing.T, p *proposal) {
	t.Helper()
	select {
	case <-p.done:
		t.Fatalf("ended with %v", p.err)
	default:
	}
}

func wantEnd(t *testing.T, p *proposal, err error) {
	t.Helper()
	select {
	case <-p.done:
		require.ErrorIs(t, p.err, err)
	default:
		t.Fatal("still open")
	}
}

// TestProposalOvertaken: an index that another leader's entry took ends all that was ever placed there, and only then: a
// place in this server's own log can be taken back by an entry of the term before, until one of them is applied.
func TestProposalOvertaken(t *testing.T) {
	ps := newProposals()
	first := ps.open(t, 1, false, op(5, 10))
	second := ps.open(t, 2, false, op(7, 10))
	third := ps.open(t, 3, true, op(7, 11))
	wantOpen(t, first)
	ps.applied(op(5, 10), tablet.Result{Timestamp: 3}, nil, lost)
	wantEnd(t, first, nil)
	require.Equal(t, hybridtime.Timestamp(3), first.result.Timestamp)
	wantEnd(t, second, errLost)
	wantOpen(t, third)
	ps.applied(op(8, 11), tablet.Result{}, nil, lost)
	wantEnd(t, third, errLost)
	require.Zero(t, ps.n)
	require.Empty(t, ps.placed)
	require.Empty(t, ps.tracked)
}

// TestProposalsDeposed: tracked proposals of leaderships that are over end; those of the one that goes on, and the untracked
// ones, stay. News may come late or several as one.
func TestProposalsDeposed(t *testing.T) {
	ps := newProposals()
	old := ps.open(t, 1, true, op(5, 10))
	untracked := ps.open(t, 2, false, op(5, 11))
	mine := ps.open(t, 3, true, op(7, 11)) // at an index of an older one
	unplaced := ps.open(t, 4, true, ident.OpID{})
	ps.deposed(4, false, deposed)
	wantOpen(t, old)
	ps.deposed(7, true, deposed) // the loss of term 5 and the win of term 7 in one
	wantEnd(t, old, errDeposed)
	wantOpen(t, untracked)
	wantOpen(t, mine)
	require.NotContains(t, ps.placed, ident.Index(10))
	ps.deposed(6, false, deposed) // late
	wantOpen(t, mine)
	ps.deposed(7, false, deposed)
	wantEnd(t, mine, errDeposed)
	wantOpen(t, unplaced)
	ps.applied(op(7, 11), tablet.Result{}, nil, lost)
	wantEnd(t, untracked, errLost)
	ps.place(unplaced, op(9, 12))
	ps.endAll(errEnd)
	wantEnd(t, unplaced, errEnd)
	require.Zero(t, ps.n)
	late := ps.open(t, 5, true, ident.OpID{})
	ps.endAll(errEnd)
	ps.place(late, op(9, 13)) // the host's word comes after the end
	require.Empty(t, ps.placed)
}

// TestProposalsPassedOn: a write that was passed on ends when an entry with its number is applied, at any index; by the end of
// the leadership that it was passed on to; but not by that once the leader has taken it.
func TestProposalsPassedOn(t *testing.T) {
	ps := newProposals()
	id := func(seq uint64) *nyalav1.StoredRequestId {
		return &nyalav1.StoredRequestId{ClientId: make([]byte, 16), SeqNo: seq}
	}
	to := func(term ident.Term) *passed { return &passed{term: term, answered: make(chan struct{})} }
	decided := ps.begin(keyOf(id(1)), true, to(5))
	open := ps.begin(keyOf(id(2)), true, to(5))
	taken := ps.begin(keyOf(id(3)), true, to(5))
	taken.passed.answer = &nyalav1.WriteResponse{Timestamp: 9}
	own := ps.begin(keyOf(id(4)), true, nil)
	ps.place(own, op(6, 20))
	ps.decided(id(1), tablet.Result{Timestamp: 7}, nil)
	wantEnd(t, decided, nil)
	require.Equal(t, hybridtime.Timestamp(7), decided.result.Timestamp)
	ps.deposed(5, false, deposed)
	wantOpen(t, open)
	ps.deposed(6, true, deposed)
	wantEnd(t, open, errDeposed)
	wantOpen(t, taken)
	ps.decided(id(4), tablet.Result{Timestamp: 8}, nil) // an earlier leader's entry for the same request
	wantEnd(t, own, nil)
	ps.applied(op(6, 20), tablet.Result{Timestamp: 11}, nil, lost)
	require.Equal(t, hybridtime.Timestamp(8), own.result.Timestamp)
	ps.decided(id(3), tablet.Result{}, errLost)
	wantEnd(t, taken, errLost)
	ps.decided(nil, tablet.Result{}, nil)
	require.Zero(t, ps.n)
	require.Empty(t, ps.placed)
	require.Empty(t, ps.tracked)
}

func TestProposalsBounded(t *testing.T) {
	ps := newProposals()
	var last *proposal
	for i := range maxProposals {
		last = ps.begin(requestKey{seq: uint64(i)}, true, nil)
		require.NotNil(t, last)
	}
	require.Nil(t, ps.begin(requestKey{seq: maxProposals}, true, nil))
	ps.end(last, tablet.Result{}, errEnd)
	require.NotNil(t, ps.begin(requestKey{seq: maxProposals}, true, nil))
}

// TestProposalsEnd runs a replica through random terms, as leader and not, and sees that every proposal ends once, with
// success only if its own entry was applied, and that nothing is left over (I3).
func TestProposalsEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ps := newProposals()
		term, leads := ident.Term(1), true
		applied, last := ident.Index(0), ident.Index(0)
		log := map[ident.Index]ident.OpID{} // what stands at an index now
		var all []*proposal
		committed := map[ident.OpID]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"propose": func(t *rapid.T) {
				if !leads {
					t.Skip()
				}
				key := requestKey{seq: rapid.Uint64Range(0, 8).Draw(t, "seq")}
				tracked := rapid.Bool().Draw(t, "tracked")
				if tracked && ps.tracked[key] != nil {
					return
				}
				p := ps.begin(key, tracked, nil)
				last++
				log[last] = op(term, last)
				ps.place(p, log[last])
				all = append(all, p)
			},
			"lose": func(t *rapid.T) {
				leads = false
				if rapid.Bool().Draw(t, "news") {
					ps.deposed(term, false, deposed)
				}
			},
			"truncate": func(t *rapid.T) {
				if leads {
					t.Skip()
				}
				term++
				from := ident.Index(rapid.Uint64Range(uint64(applied)+1, uint64(last)+1).Draw(t, "from"))
				last = from
				log[from] = op(term, from)
				if rapid.Bool().Draw(t, "news") {
					ps.deposed(term, false, deposed)
				}
			},
			"win": func(t *rapid.T) {
				if leads {
					t.Skip()
				}
				term++
				leads = true
				last++
				log[last] = op(term, last)
				if rapid.Bool().Draw(t, "news") {
					ps.deposed(term, true, deposed)
				}
			},
			"apply": func(t *rapid.T) {
				if applied == last {
					t.Skip()
				}
				applied++
				committed[log[applied]] = true
				ps.applied(log[applied], tablet.Result{}, nil, lost)
			},
			"": func(t *rapid.T) {
				open := 0
				for _, p := range all {
					switch {
					case !p.ended:
						open++
						if p.op.Index <= applied {
							t.Fatalf("%s is open, %d is applied", p.op, applied)
						}
					case p.err == nil && !committed[p.op]:
						t.Fatalf("%s succeeded and was not applied", p.op)
					case errors.Is(p.err, errLost) && committed[p.op]:
						t.Fatalf("%s was said to be lost and is applied", p.op)
					case errors.Is(p.err, errDeposed) && !p.tracked:
						t.Fatalf("%s can't be asked about again", p.op)
					}
				}
				if ps.n != open {
					t.Fatalf("%d counted, %d open", ps.n, open)
				}
			},
		})
		ps.endAll(errEnd)
		if ps.n != 0 || len(ps.placed) != 0 || len(ps.tracked) != 0 {
			t.Fatalf("left over: %d, %v, %v", ps.n, ps.placed, ps.tracked)
		}
	})
}
