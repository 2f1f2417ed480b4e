package client

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// tablet is one tablet of a table: its fixed share of the partition keys, and where its replicas are as far as known. It is
// shared by all who use the table; refreshed locations go into it in place.
type tablet struct {
	id    string
	start []byte
	end   []byte // empty: no bound
	hash  []uint32

	mu       sync.Mutex
	replicas []replica // replaced as a whole, never changed
	// leader is the server that was last seen to lead, or is said to; "": nobody knows.
	leader string
	term   uint64 // the highest in which a leader was named
	// gone: the master no longer lists the tablet.
	gone    bool
	expires time.Time
}

// replica is a tablet's replica on one server.
type replica struct {
	server  string
	addr    string
	id      uint64
	learner bool
}

// contains says whether the tablet holds a partition key.
func (t *tablet) contains(key []byte) bool {
	return bytes.Compare(t.start, key) <= 0 && t.endsAfter(key)
}

// endsAfter says whether the tablet reaches beyond a partition key.
func (t *tablet) endsAfter(key []byte) bool { return len(t.end) == 0 || bytes.Compare(key, t.end) < 0 }

// update takes over what the master says. A leader that was learned from the tablet's servers is kept: they know sooner.
func (t *tablet) update(locations []*nyalav1.ReplicaLocation, expires time.Time) {
	replicas := make([]replica, 0, len(locations))
	leader := ""
	for _, l := range locations {
		replicas = append(replicas, replica{
			server: l.GetServerId(), addr: l.GetAddress(), id: l.GetReplicaId(),
			learner: l.GetRole() == nyalav1.Role_ROLE_LEARNER,
		})
		if l.GetRole() == nyalav1.Role_ROLE_LEADER {
			leader = l.GetServerId()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.replicas, t.expires, t.gone = replicas, expires, false
	known := func(server string) bool {
		return slices.ContainsFunc(replicas, func(r replica) bool { return r.server == server })
	}
	if t.leader == "" || !known(t.leader) {
		t.leader = leader
	}
}

func (t *tablet) vanish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone = true
}

// isGone says whether the master no longer lists the tablet.
func (t *tablet) isGone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.gone
}

// expired says whether the locations are older than the master said they last.
func (t *tablet) expired() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().After(t.expires)
}

// led notes that a server has taken a write: as the leader, unless it names another.
func (t *tablet) led(server string, leader *nyalav1.Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if leader.GetServerId() == "" {
		t.leader = server
	} else {
		t.namedLocked(leader)
	}
}

// namedLocked takes over who leads. Its replica may be news: the config has changed since the master told us.
func (t *tablet) namedLocked(leader *nyalav1.Peer) {
	server := leader.GetServerId()
	t.leader = server
	known := slices.ContainsFunc(t.replicas, func(r replica) bool { return r.server == server })
	if !known && leader.GetAddress() != "" {
		t.replicas = append(slices.Clip(t.replicas), replica{server: server, addr: leader.GetAddress(), id: leader.GetReplicaId()})
	}
}

// notLed notes that a server doesn't lead, or can't be reached.
func (t *tablet) notLed(server string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leader == server {
		t.leader = ""
	}
}

// hint takes over a server's word on who leads, unless a later term's is known. It says whether that names anyone new.
func (t *tablet) hint(from string, leader *nyalav1.Peer, term uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.leader == from {
		t.leader = ""
	}
	server := leader.GetServerId()
	if server == "" || server == from || (t.leader != "" && term <= t.term) {
		return false
	}
	news := t.leader != server
	t.term = max(t.term, term)
	t.namedLocked(leader)
	return news
}

// locationsNow returns the replicas and the leading server.
func (t *tablet) locationsNow() ([]replica, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replicas, t.leader
}

// pickWriter chooses the next replica to send a write to: the one on the server via where there is one, and then no other;
// else the leader as far as known, else any that this round hasn't tried, voters first. False: all have been tried.
func (t *tablet) pickWriter(via string, tried map[string]bool) (replica, bool) {
	replicas, leader := t.locationsNow()
	if i := slices.IndexFunc(replicas, func(r replica) bool { return via != "" && r.server == via }); i >= 0 {
		return replicas[i], !tried[via]
	}
	return pick(replicas, tried, func(r replica) int {
		switch {
		case r.server == leader:
			return 0
		case r.learner:
			return 2
		}
		return 1
	})
}

// pick returns the untried replica with the lowest rank, a random one among equals.
func pick(replicas []replica, tried map[string]bool, rank func(replica) int) (replica, bool) {
	var best replica
	found, bestRank, equals := false, 0, 0
	for _, r := range replicas {
		if tried[r.server] {
			continue
		}
		k := rank(r)
		switch {
		case !found || k < bestRank:
			best, bestRank, found, equals = r, k, true, 1
		case k == bestRank:
			equals++
			if rand.IntN(equals) == 0 {
				best = r
			}
		}
	}
	return best, found
}
