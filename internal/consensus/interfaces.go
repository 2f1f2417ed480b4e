package consensus

import (
	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// Channel says which of the two connections to another server a message takes.
type Channel uint8

const (
	// Control carries heartbeats, votes, closed timestamps and hand-overs: small, and never behind data.
	Control Channel = iota
	// Data carries appends, commit notices and their answers.
	Data
)

// String is "control" or "data".
func (c Channel) String() string {
	if c == Control {
		return "control"
	}
	return "data"
}

// Transport carries messages to other servers.
type Transport interface {
	// Send queues messages for one server and returns at once: it never blocks. Queues are bounded; what is dropped is
	// reported through Host.Unreachable. Messages of one channel keep their order. The messages belong to the transport.
	Send(to ident.ServerID, address string, ch Channel, msgs []*nyalav1.GroupMessage)
}

// ApplyGroup is what one call of Applier.Apply does for one group.
type ApplyGroup struct {
	Tablet  ident.TabletID
	Number  ident.LocalNumber
	Entries []CommittedEntry
	// Err is set by the applier: the replica can't go on, and fails by it.
	Err error
}

// CommittedEntry is a committed log entry in the form that the state machine sees. Payload is shared and not to be changed.
type CommittedEntry struct {
	ident.OpID
	Kind wal.Kind
	// Timestamp is zero for entries that carry none (raft's first of a term).
	Timestamp hybridtime.Timestamp
	Payload   []byte
	// Config is the config after the entry, for config entries.
	Config *nyalav1.RaftConfig
}

// Applier is the state machine behind all groups of the server.
type Applier interface {
	// Apply applies each group's entries, in order, and returns when they are visible to reads. One call may hold several
	// groups; there is never more than one call under way for a group. Every committed entry comes by, so that the applied
	// index moves through all of them. It may be called from several goroutines for different groups.
	Apply(groups []ApplyGroup)
}

// Observer hears of changes. Its methods are called one at a time from a goroutine of the host, in order for each group;
// changes of leadership that follow fast upon each other may arrive as one.
type Observer interface {
	// LeadershipChanged says that role, term, leader or readiness have changed.
	LeadershipChanged(tablet ident.TabletID, s GroupStatus)
	// ReplicaFailed says that the replica is done for: it takes no part in its group any more.
	ReplicaFailed(tablet ident.TabletID, err error)
	// NeedsCopy says, at the leader, that a member can't be brought up from the log: what it needs next has been cut, or it is a
	// learner that its server doesn't hold. It comes again while that lasts, every ten heartbeat intervals. A voter that its server
	// doesn't hold is not copied: it has forgotten what it promised under its id (MemberStatus.Absent). Neither is to be changed.
	NeedsCopy(tablet ident.TabletID, peer *nyalav1.Peer, config *nyalav1.RaftConfig)
	// ReplicaRemoved says that the replica here is no member of its group any more, by a committed config: it is to be deleted.
	ReplicaRemoved(tablet ident.TabletID, replica ident.ReplicaID)
}

// Clock is the part of the hybrid clock that consensus needs. All methods are safe for concurrent use.
type Clock interface {
	// Now returns a timestamp above all given out before, or an error while the clock can't be trusted.
	Now() (hybridtime.Timestamp, error)
	// Update moves the clock past ts if that is within the guard; otherwise it fails and leaves the clock alone.
	Update(ts hybridtime.Timestamp) error
	// CheckAhead fails if ts is beyond the guard.
	CheckAhead(ts hybridtime.Timestamp) error
	// MarkFor returns the mark that a commit with entries up to used has to carry; write is false if the durable one will do.
	MarkFor(used hybridtime.Timestamp) (mark []byte, write bool)
	// MarkDurable is called after the commit that carried the mark.
	MarkDurable(mark []byte)
	// PromiseMarkFor is MarkFor for the promise to close ts.
	PromiseMarkFor(ts hybridtime.Timestamp) (mark []byte, write bool)
	// PromiseDurable is called after the commit that carried the promise mark.
	PromiseDurable(mark []byte)
	// DurablePromise is at or above every promise that ever left this server.
	DurablePromise() hybridtime.Timestamp
}
