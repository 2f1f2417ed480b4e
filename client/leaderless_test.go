package client

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nyaladb/nyala/internal/status"
)

// mostLeaderless is how long a client may leave a tablet alone that has no leader.
const mostLeaderless = 100 * time.Millisecond

// TestLeaderlessPauses shows how long the pauses are while a tablet has no leader, by themselves: under 100 ms however long it
// lasts, and never none.
func TestLeaderlessPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{opts: Options{}.withDefaults(), life: t.Context()}
		r := c.newRetry()
		r.failed(t.Context(), "a", &callError{code: status.NotTheLeader, fault: &Error{Code: status.NotTheLeader}})
		for i := range 200 {
			start := time.Now()
			if err := r.pause(t.Context(), nextRound.pauseLimit(c)); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(start); d >= mostLeaderless || d <= 0 {
				t.Fatalf("pause %d is %v", i, d)
			}
		}
	})
}

// TestLeaderlessTries counts the tries of a write while its tablet has no leader: all replicas are asked in each round, and rounds
// follow one another within 100 ms. The machine may hold up a few, so that is asked of most.
func TestLeaderlessTries(t *testing.T) {
	for _, mute := range []bool{false, true} {
		c := newFakeCluster(t, 1, 3)
		cl := c.connect(Options{})
		table := c.createTable(cl, oneTablet("t", 3))
		tb := c.tabletOf(table, 0)
		s := cl.NewSession(SessionOptions{})
		if err := s.Apply(t.Context(), insert(table, 0, "x")); err != nil {
			t.Fatal(err)
		}
		const rounds = 16
		var mu sync.Mutex
		var tries []time.Time
		asked := map[string]int{}
		c.change(func() { tb.leader, tb.mute = "", mute })
		c.setHook(func(call *fakeCall) error {
			if call.method != "TabletService/Write" || call.after {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Now())
			if asked[call.server.id]++; len(tries) == 3*rounds {
				c.change(func() { tb.leader = tb.hosts[0] })
			}
			return nil
		})
		if err := s.Apply(t.Context(), insert(table, 1, "x")); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		if len(tries) > 3*(rounds+1) || len(asked) != 3 {
			t.Errorf("mute %v: %d tries, by server %v", mute, len(tries), asked)
		}
		var gaps []time.Duration // from one round's first try to the next one's
		for i := 3; i < len(tries); i += 3 {
			gaps = append(gaps, tries[i].Sub(tries[i-3]))
		}
		mu.Unlock()
		slices.Sort(gaps)
		if d := gaps[len(gaps)/2]; d >= mostLeaderless {
			t.Errorf("mute %v: rounds are %v apart in the median, %v at most", mute, d, gaps[len(gaps)-1])
		}
		t.Logf("mute %v: rounds are %v apart in the median, %v at most", mute, gaps[len(gaps)/2], gaps[len(gaps)-1])
	}
}
