package chaos

import (
	"fmt"
	"slices"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

// TestThreeServers has servers killed, stopped, cut off, deafened and muted, and leaderships handed over, one after the other.
func TestThreeServers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	w := c.start(6)
	tablet := c.tablet(w.table)
	c.leader(tablet)
	c.follow(tablet, length(t, 0), killed, stopped, isolated, deaf, mute, churny)
	w.finish()
}

// TestFiveServers parts five servers into halves, into a ring in which each sees a majority and no two the same, and by a bridge
// that alone sees both sides. At the end the network is healed and writes are taken everywhere.
func TestFiveServers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 5)
	w := c.start(6)
	tablet := c.tablet(w.table)
	c.leader(tablet)
	c.follow(tablet, length(t, 0), halves, ring, bridge)
	w.finish()
}

// TestOneWay drops what goes to a follower (T13 a): when it hears the others again their leader is the same, in the same term or
// the next. Then an old leader sees but one of four others, which see each other (T13 b): they have a leader within five election
// times.
func TestOneWay(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 5)
	table := c.createTable("rows")
	tablet := c.tablet(table)
	leader := c.leader(tablet)
	// Without a word from outside each election would come by itself only if something is wrong.
	follower := c.others(leader)[c.rnd.IntN(4)]
	before := c.replica(leader, tablet)
	for _, o := range c.others(follower) {
		c.net.Cut(o, follower)
	}
	c.pause(length(t, 3*electionTime))
	c.net.Heal()
	c.until("the follower hears its leader again", 20*time.Second, func() bool {
		r, l := c.replica(follower, tablet), c.replica(leader, tablet)
		return r.GetLeaderReplicaId() != 0 && r.GetLeaderReplicaId() == l.GetLeaderReplicaId() && r.GetCommitIndex() == l.GetCommitIndex()
	})
	after := c.replica(leader, tablet)
	if after.GetRole() != nyalav1.Role_ROLE_LEADER || after.GetTerm() > before.GetTerm()+1 {
		t.Errorf("%s led in term %d; after %s was deaf for a while it is %s in term %d", leader, before.GetTerm(), follower, after.GetRole(), after.GetTerm())
	}

	leader = c.leader(tablet)
	rest := c.others(leader)
	c.net.Part([]string{leader}, rest[1:])
	start := time.Now()
	next := c.leader(tablet, rest...)
	took := time.Since(start)
	t.Logf("%s led, saw %s alone, and %s led after %v", leader, rest[0], next, took)
	if took > 5*electionTime {
		t.Errorf("a majority without its leader took %v to elect another, more than five election times of %v", took, electionTime)
	}
	s := c.client.NewSession(client.SessionOptions{Via: c.ids[next]})
	op := table.NewUpsert()
	if err := op.Set("id", 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(t.Context(), op); err != nil {
		t.Errorf("a write through the new leader: %v", err)
	}
}

// TestFollowersKnowCommits writes single rows with nothing behind them (T14): each follower's commit index is the leader's in a
// moment that is far shorter than the heartbeat interval, in which it would hear of it otherwise. The interval is long, so that a
// busy machine doesn't decide: what it takes is in the log (5 to 10 ms, where 50 are asked for).
func TestFollowersKnowCommits(t *testing.T) {
	t.Parallel()
	const interval = 4 * time.Second
	c := newCluster(t, 3, fmt.Sprintf("--raft_heartbeat_interval_ms=%d", interval.Milliseconds()))
	table := c.createTable("rows")
	tablet := c.tablet(table)
	leader := c.leader(tablet)
	followers := c.others(leader)
	s := c.client.NewSession(client.SessionOptions{Via: c.ids[leader]})
	var lags []time.Duration
	for i := range 15 {
		op := table.NewUpsert()
		if err := op.Set("id", i); err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		acknowledged := time.Now()
		committed := c.replica(leader, tablet).GetCommitIndex()
		for _, f := range followers {
			c.until(fmt.Sprintf("%s knows that %d is committed", f, committed), 20*time.Second, func() bool {
				return c.replica(f, tablet).GetCommitIndex() >= committed
			})
		}
		lags = append(lags, time.Since(acknowledged))
		// The snapshot just above the write shows it at each follower, without another write.
		for _, f := range followers {
			seen, _, err := readAll(t.Context(), table, client.ScanOptions{
				ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: s.LastTimestamp() + 1, ServerID: c.ids[f],
			})
			if err != nil || len(seen) != i+1 {
				t.Fatalf("%s shows %d rows of %d at the last write's snapshot: %v", f, len(seen), i+1, err)
			}
		}
	}
	slices.Sort(lags)
	t.Logf("commit indexes were level after %v in the median, %v at most", lags[len(lags)/2], lags[len(lags)-1])
	if lags[len(lags)/2] > interval/4 {
		t.Errorf("followers knew of a commit after %v in the median, with heartbeats each %v", lags[len(lags)/2], interval)
	}
}
