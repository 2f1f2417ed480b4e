package clock

import (
	"slices"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
)

// Beat is what a server tells another about its clock, once per heartbeat: enough for both to know their clocks' offset
// and how far it can be trusted, as in NTP. Times are nanoseconds.
type Beat struct {
	// Sent is the sender's CLOCK_BOOTTIME as the beat left. The receiver only sends it back.
	Sent int64
	// Wall is the sender's wall clock at the same moment, as it is, good or bad.
	Wall int64
	// MaxError is the sender's own error bound.
	MaxError time.Duration
	Verdict  Verdict
	State    State
	// Echo is Sent of the last beat that came from the receiver, and EchoWall the sender's wall clock as it came; 0: none.
	Echo     int64
	EchoWall int64
}

// PeerOffset is what is known of another server's clock.
type PeerOffset struct {
	Peer ident.ServerID
	// Ahead is how far this server's wall clock is ahead of the peer's; less than 0: behind. The truth is within Bound.
	Ahead   time.Duration
	Bound   time.Duration
	Age     time.Duration // since the beat that showed it
	Verdict Verdict       // the peer's own
	State   State         // the peer's own
}

// Opinion is what the other servers, taken together, say of this server's clock.
type Opinion struct {
	Others int // how many other servers there are
	Heard  int // how many of them were heard of late
	Right  int // how many agree with this clock within the bound, with certainty
	Off    int // how many disagree by more than the bound, with certainty, and trust their own clock

	// Agree: more than half of the other servers agree.
	Agree bool
	// Blame: this clock is the one that is wrong, for most of those heard disagree, and they are several. With one other
	// server heard, nobody can say who is wrong; and who knows its own clock to be wrong accuses nobody.
	Blame bool
	// Ahead is the median of how far this clock is ahead of theirs.
	Ahead time.Duration
}

// Opine sums a table of offsets up. It is a pure function: bound is max_clock_sync_error_usec, others how many other
// servers there are. An offset whose own bound is too wide to say counts for neither side; so a slow network makes a server
// neither right nor wrong.
func Opine(table []PeerOffset, others int, bound time.Duration) Opinion {
	o := Opinion{Others: max(others, len(table)), Heard: len(table)}
	if len(table) == 0 {
		return o
	}
	ahead := make([]time.Duration, 0, len(table))
	for _, p := range table {
		ahead = append(ahead, p.Ahead)
		switch {
		case p.Ahead.Abs() <= bound-p.Bound:
			o.Right++
		case p.Ahead.Abs()-p.Bound > bound && p.State == Open:
			o.Off++
		}
	}
	slices.Sort(ahead)
	o.Ahead = ahead[(len(ahead)-1)/2]
	o.Agree = 2*o.Right > o.Others
	o.Blame = o.Heard >= 2 && 2*o.Off > o.Heard
	return o
}

// slewSlack is the part of a time by which two clocks may measure it differently: a kernel slews by a tenth at most.
const slewSlack = 8

// offset computes what one answered beat shows of the peer's wall clock against this server's CLOCK_BOOTTIME: sent and
// arrived are readings of ours, received and replied of the peer's wall clock. ok is false where the answer makes no sense:
// one of the clocks was set in between.
//
// Our own side is measured by CLOCK_BOOTTIME: a step of our wall clock doesn't spoil it, and the next look compares the
// stepped wall clock with what the peers said before.
func offset(sent, received, replied, arrived int64) (ahead int64, bound time.Duration, ok bool) {
	held := replied - received // by the peer, on its clock
	trip := arrived - sent - held
	if arrived < sent || held < 0 || trip < -held/slewSlack {
		return 0, 0, false
	}
	// Both clocks may be slewed while the peer held the beat, so a trip may even seem to take less than no time.
	return (received-sent)/2 + (replied-arrived)/2, time.Duration(abs(trip)/2 + held/1_000_000*honestPPM + 1), true
}

// peer is one row of the table that beats fill.
type peer struct {
	lastSent int64 // Sent of the last beat from it
	lastWall int64 // our wall clock as that came

	known   bool
	ahead   int64 // its wall clock minus our CLOCK_BOOTTIME
	bound   time.Duration
	at      int64 // monotonic, when it was learnt
	began   int64 // monotonic, when the beat left that it was learnt by
	verdict Verdict
	state   State
}

// peers is the table of the other servers' clocks. It is not safe for use by several goroutines.
type peers struct {
	others int
	rows   map[ident.ServerID]*peer
}

// beat returns what to send. now is this server's reading as it leaves, boot its CLOCK_BOOTTIME.
func (t *peers) beat(to ident.ServerID, now Pair, boot int64, v *view) Beat {
	b := Beat{Sent: boot, Wall: now.Wall, MaxError: v.bound.is(now.Mono), Verdict: v.j.Verdict, State: v.state}
	if p := t.rows[to]; p != nil {
		b.Echo, b.EchoWall = p.lastSent, p.lastWall
	}
	return b
}

// hear takes a beat over. now is this server's reading as it arrived, boot its CLOCK_BOOTTIME.
func (t *peers) hear(from ident.ServerID, b Beat, now Pair, boot int64) {
	if t.rows == nil {
		t.rows = map[ident.ServerID]*peer{}
	}
	p := t.rows[from]
	if p == nil {
		p = &peer{}
		t.rows[from] = p
	}
	p.lastSent, p.lastWall, p.verdict, p.state = b.Sent, now.Wall, b.Verdict, b.State
	if b.Echo == 0 {
		return
	}
	ahead, bound, ok := offset(b.Echo, b.EchoWall, b.Wall, boot)
	if !ok {
		return
	}
	p.known, p.ahead, p.bound = true, ahead, bound+max(b.MaxError, 0)
	p.at, p.began = now.Mono, now.Mono-(boot-b.Echo)
}

// table returns what is known by beats that were sent off after the given moment and are no older than maxAge. ours is this
// server's wall clock minus its CLOCK_BOOTTIME.
func (t *peers) table(ours, now, after int64, maxAge time.Duration) []PeerOffset {
	var table []PeerOffset
	for id, p := range t.rows {
		if !p.known || p.began < after || now-p.at > int64(maxAge) {
			continue
		}
		table = append(table, PeerOffset{
			Peer: id, Ahead: time.Duration(ours - p.ahead), Bound: p.bound, Age: time.Duration(now - p.at),
			Verdict: p.verdict, State: p.state,
		})
	}
	slices.SortFunc(table, func(a, b PeerOffset) int {
		if a.Peer < b.Peer {
			return -1
		}
		return 1
	})
	return table
}
