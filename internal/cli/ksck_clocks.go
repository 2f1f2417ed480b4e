package cli

import (
	"strings"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// clockFacts are one server's clock as ksck has it.
type clockFacts struct {
	id, name string // "tablet server 127.0.0.1:7050"
	clock    *nyalav1.GetClockResponse
}

// judgeClocks names the servers whose clocks give no timestamps out, and those that differ by more than they may while
// nobody can say which is wrong.
func (r *ksckReport) judgeClocks(f *ksckFacts) {
	var all []clockFacts
	for _, m := range f.masters {
		if m.clock != nil {
			all = append(all, clockFacts{id: m.status.GetServerId(), name: "master " + m.addr, clock: m.clock})
		}
	}
	for _, s := range f.servers {
		if s.clock != nil {
			all = append(all, clockFacts{id: s.status.GetServerId(), name: "tablet server " + strings.Join(s.known.RPCAddresses, ","), clock: s.clock})
		}
	}
	byID := map[string]clockFacts{}
	for _, c := range all {
		byID[c.id] = c
		if why := c.clock.GetReason(); why != "" {
			r.problem("clocks: %s gives no timestamps out: %s", c.name, strings.TrimPrefix(why, "clock "))
		}
	}
	for _, c := range all {
		for _, p := range c.clock.GetPeers() {
			other, asked := byID[p.GetServerId()]
			if !asked || c.clock.GetReason() != "" || other.clock.GetReason() != "" {
				continue // said already
			}
			if other.id < c.id && differs(other.clock, c.id) || !differs(c.clock, other.id) {
				continue // said from the other side, or not so
			}
			offset := time.Duration(p.GetOffsetUsec()) * time.Microsecond
			side := "ahead of"
			if offset < 0 {
				side = "behind"
			}
			r.problem("clocks: %s is %v %s %s, more than clocks may differ (max_clock_sync_error_usec is %d): set the one right that is wrong; nyala cluster clock shows all",
				other.name, offset.Abs().Round(time.Millisecond), side, c.name, c.clock.GetMaxClockSyncErrorUsec())
		}
	}
}

// differs says whether a server has certainly seen another's clock off by more than it may be.
func differs(c *nyalav1.GetClockResponse, id string) bool {
	for _, p := range c.GetPeers() {
		if p.GetServerId() == id && p.GetKnown() {
			offset := p.GetOffsetUsec()
			return max(offset, -offset)-p.GetBoundUsec() > c.GetMaxClockSyncErrorUsec() && c.GetMaxClockSyncErrorUsec() > 0
		}
	}
	return false
}
