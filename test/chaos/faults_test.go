package chaos

import (
	"context"
	"syscall"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// fault goes on for a while and is over when its function returns.
type fault struct {
	name string
	run  func(c *cluster, tablet string)
}

// while is how long a fault lasts: long enough for an election among those that can hold one, and a while beyond.
func (c *cluster) while() time.Duration {
	return electionTime + time.Duration(c.rnd.Int64N(int64(electionTime)))
}

// leaderOrAny is the leader in two of three cases, since most goes wrong there.
func (c *cluster) leaderOrAny(tablet string) string {
	if c.rnd.IntN(3) > 0 {
		if leader := c.leaderNow(tablet, c.names); leader != "" {
			return leader
		}
	}
	return c.names[c.rnd.IntN(len(c.names))]
}

var (
	killed = fault{"kill -9", func(c *cluster, tablet string) {
		name := c.leaderOrAny(tablet)
		if err := c.Kill(name); err != nil {
			c.t.Fatal(err)
		}
		c.pause(c.while())
		if err := c.Start(c.t.Context(), name); err != nil {
			c.t.Fatal(err)
		}
	}}
	// stopped is fault 17: what was in flight at the leader when it stood still is decided once, by the log.
	stopped = fault{"SIGSTOP, SIGCONT", func(c *cluster, tablet string) {
		name := c.leaderOrAny(tablet)
		c.signal(name, syscall.SIGSTOP)
		c.pause(c.while())
		c.signal(name, syscall.SIGCONT)
	}}
	isolated = fault{"cut off", func(c *cluster, tablet string) {
		name := c.leaderOrAny(tablet)
		c.net.Part([]string{name}, c.others(name))
		c.pause(c.while())
		c.net.Heal()
	}}
	// deaf is fault 21: one hears none and can send.
	deaf = fault{"hears none", func(c *cluster, tablet string) {
		name := c.leaderOrAny(tablet)
		for _, o := range c.others(name) {
			c.net.Cut(o, name)
		}
		c.pause(c.while())
		c.net.Heal()
	}}
	mute = fault{"is heard by none", func(c *cluster, tablet string) {
		name := c.leaderOrAny(tablet)
		for _, o := range c.others(name) {
			c.net.Cut(name, o)
		}
		c.pause(c.while())
		c.net.Heal()
	}}
	// churny is fault 16: leaderships are handed over all the time.
	churny = fault{"step-downs", func(c *cluster, tablet string) {
		end := time.Now().Add(c.while())
		for time.Now().Before(end) {
			if leader := c.leaderNow(tablet, c.names); leader != "" {
				_ = c.admin(leader, func(ctx context.Context, admin nyalav1.TabletAdminServiceClient) error {
					_, err := admin.LeaderStepDown(ctx, &nyalav1.LeaderStepDownRequest{TabletId: tablet})
					return err
				})
			}
			c.pause(time.Duration(c.rnd.Int64N(int64(heartbeat))))
		}
	}}
	// halves, ring and bridge are fault 2.
	halves = fault{"halves", func(c *cluster, _ string) {
		p := c.rnd.Perm(len(c.names))
		var some []string
		for _, i := range p[:len(p)/2] {
			some = append(some, c.names[i])
		}
		c.net.Part(some, c.others(some...))
		c.pause(c.while())
		c.net.Heal()
	}}
	ring = fault{"majority ring", func(c *cluster, _ string) {
		n, p := len(c.names), c.rnd.Perm(len(c.names))
		for i := range n { // each hears its two neighbours: a majority of five, and no two the same
			for j := range n {
				if d := (i - j + n) % n; d > 1 && d < n-1 {
					c.net.Cut(c.names[p[i]], c.names[p[j]])
				}
			}
		}
		c.pause(c.while())
		c.net.Heal()
	}}
	bridge = fault{"bridge", func(c *cluster, _ string) {
		p := c.rnd.Perm(len(c.names))
		c.net.Part([]string{c.names[p[0]], c.names[p[1]]}, []string{c.names[p[3]], c.names[p[4]]})
		c.pause(c.while())
		c.net.Heal()
	}}
)

// follow lets each of the faults happen, in an order by chance, and then others of them until the time is over.
func (c *cluster) follow(tablet string, during time.Duration, faults ...fault) {
	c.t.Helper()
	end := time.Now().Add(during)
	for round := 0; round == 0 || time.Now().Before(end); round++ {
		for _, i := range c.rnd.Perm(len(faults)) {
			if round > 0 && time.Now().After(end) {
				return
			}
			c.t.Logf("%s: %s", time.Now().Format("15:04:05.000"), faults[i].name)
			faults[i].run(c, tablet)
			c.pause(time.Duration(c.rnd.Int64N(int64(electionTime)))) // in most cases there is a leader by then
		}
	}
}
