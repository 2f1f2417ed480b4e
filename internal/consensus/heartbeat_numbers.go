package consensus

import (
	"errors"
	"fmt"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// heartbeatKey is what a number in a batch of heartbeats stands for: a way between two replicas of a tablet.
type heartbeatKey struct {
	tablet   [16]byte
	from, to ident.ReplicaID
}

// numbering gives the numbers of one side of a pair of servers. Within an epoch a number means one thing for good, so a batch
// that comes late, twice or after others is read as it was meant, or not at all; and an epoch is this one's alone.
type numbering struct {
	epoch   uint64
	numbers map[heartbeatKey]uint64
	given   []givenNumber // by number
	looked  time.Duration // when it was seen last how many are used
}

type givenNumber struct {
	told bool // what it means has been said, and wasn't lost as far as is known
	used bool // since it was seen last how many are
}

// A numbering is looked at every so often; one with fewer numbers than minNumbers is kept as it is.
const (
	lookAtNumbers = time.Minute
	minNumbers    = 1024
)

// worn says whether most of the numbers have gone out of use, with the groups that had them: then it is time for a new epoch.
func (n *numbering) worn(now time.Duration) bool {
	if now-n.looked < lookAtNumbers {
		return false
	}
	n.looked = now
	used := 0
	for i := range n.given {
		if n.given[i].used {
			used++
		}
		n.given[i].used = false
	}
	return len(n.given) >= minNumbers && 2*used < len(n.given)
}

// write puts heartbeats and answers into a message.
func (n *numbering) write(m *nyalav1.Heartbeats, hs, answers []Heartbeat) {
	m.Number, m.Term = make([]int64, 0, len(hs)), make([]uint64, 0, len(hs))
	m.Commit, m.Held = make([]uint64, 0, len(hs)), make([]int64, 0, len(hs))
	last := int64(0)
	for i := range hs {
		h := &hs[i]
		number := n.say(m, h)
		m.Number, last = append(m.Number, number-last), number
		m.Term, m.Commit = append(m.Term, uint64(h.Term)), append(m.Commit, uint64(h.Commit))
		m.Held = append(m.Held, int64(h.Commit-h.Held))
	}
	m.AnswerNumber, m.AnswerTerm = make([]int64, 0, len(answers)), make([]uint64, 0, len(answers))
	m.AnswerCommit = make([]uint64, 0, len(answers))
	last = 0
	for i := range answers {
		h := &answers[i]
		number := n.say(m, h)
		m.AnswerNumber, last = append(m.AnswerNumber, number-last), number
		m.AnswerTerm, m.AnswerCommit = append(m.AnswerTerm, uint64(h.Term)), append(m.AnswerCommit, uint64(h.Commit))
	}
}

// say returns the number for a heartbeat, and adds what it means if the receiver may not know.
func (n *numbering) say(m *nyalav1.Heartbeats, h *Heartbeat) int64 {
	k := heartbeatKey{h.Tablet, h.From, h.To}
	number, ok := n.numbers[k]
	if !ok {
		if n.numbers == nil {
			n.numbers = make(map[heartbeatKey]uint64)
		}
		number = uint64(len(n.given))
		n.numbers[k] = number
		n.given = append(n.given, givenNumber{})
	}
	g := &n.given[number]
	g.used = true
	if !g.told {
		g.told = true
		m.Groups = append(m.Groups, &nyalav1.HeartbeatGroup{Number: number, TabletId: k.tablet[:], From: uint64(h.From), To: uint64(h.To)})
	}
	return int64(number)
}

// forget takes back that what numbers of an epoch mean has been said.
func (n *numbering) forget(epoch uint64, numbers []uint64) {
	if epoch != n.epoch {
		return
	}
	for _, i := range numbers {
		if i < uint64(len(n.given)) {
			n.given[i].told = false
		}
	}
}

// readings are what the numbers of the other side mean, as far as it has said so in its latest epoch.
type readings struct {
	epoch uint64
	keys  map[uint64]heartbeatKey
}

// maxReadings bounds what is remembered of one server: above it a number stays unknown.
const maxReadings = 1 << 20

var errHeartbeats = errors.New("malformed heartbeats")

// read returns what a message holds, and the numbers that can't be read. A message of another epoch begins anew: one of an
// earlier epoch that comes late costs a round of asking, no more.
func (r *readings) read(m *nyalav1.Heartbeats) (hs []Heartbeat, unknown []uint64, err error) {
	n, a := len(m.GetNumber()), len(m.GetAnswerNumber())
	if len(m.GetTerm()) != n || len(m.GetCommit()) != n || len(m.GetHeld()) != n || len(m.GetAnswerTerm()) != a || len(m.GetAnswerCommit()) != a {
		return nil, nil, fmt.Errorf("%w: columns of different lengths", errHeartbeats)
	}
	for _, g := range m.GetGroups() {
		if len(g.GetTabletId()) != 16 || g.GetFrom() == 0 || g.GetTo() == 0 {
			return nil, nil, fmt.Errorf("%w: number %d means nothing", errHeartbeats, g.GetNumber())
		}
	}
	if m.GetEpoch() != r.epoch || r.keys == nil {
		r.epoch, r.keys = m.GetEpoch(), make(map[uint64]heartbeatKey)
	}
	for _, g := range m.GetGroups() {
		if len(r.keys) < maxReadings {
			r.keys[g.GetNumber()] = heartbeatKey{[16]byte(g.GetTabletId()), ident.ReplicaID(g.GetFrom()), ident.ReplicaID(g.GetTo())}
		}
	}
	hs = make([]Heartbeat, 0, n+a)
	number := int64(0)
	for i, d := range m.GetNumber() {
		number += d
		if k, ok := r.keys[uint64(number)]; ok {
			commit := ident.Index(m.GetCommit()[i])
			hs = append(hs, Heartbeat{
				Tablet: k.tablet, From: k.from, To: k.to, Term: ident.Term(m.GetTerm()[i]), Commit: commit,
				Held: commit - ident.Index(m.GetHeld()[i]), Sent: m.GetSent(),
			})
		} else {
			unknown = append(unknown, uint64(number))
		}
	}
	number = 0
	for i, d := range m.GetAnswerNumber() {
		number += d
		if k, ok := r.keys[uint64(number)]; ok {
			hs = append(hs, Heartbeat{
				Tablet: k.tablet, From: k.from, To: k.to, Term: ident.Term(m.GetAnswerTerm()[i]), Commit: ident.Index(m.GetAnswerCommit()[i]), Answer: true,
			})
		} else {
			unknown = append(unknown, uint64(number))
		}
	}
	return hs, unknown, nil
}
