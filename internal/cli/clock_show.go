package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

// clockJSON is one server in `cluster clock --format json`. Offsets are the other's wall clock less this server's.
type clockJSON struct {
	UUID          string          `json:"uuid"`
	RPC           string          `json:"rpc"`
	Role          string          `json:"role"`
	State         string          `json:"state"` // open, held, fenced, unreachable
	Reason        string          `json:"reason,omitempty"`
	Verdict       string          `json:"verdict"`
	Source        string          `json:"source"`
	Detection     bool            `json:"jump_detection"`
	Extrapolating bool            `json:"extrapolating"`
	MaxErrorUsec  int64           `json:"max_error_usec"`
	DisplacedUsec int64           `json:"displaced_usec"`
	WallMinusMono int64           `json:"wall_minus_monotonic_usec"`
	Latest        uint64          `json:"latest"`
	Now           uint64          `json:"now"`
	Mark          uint64          `json:"mark"`
	Promise       uint64          `json:"promise"`
	Opinion       string          `json:"opinion"`
	Peers         []clockPeerJSON `json:"peers"`
}

type clockPeerJSON struct {
	UUID       string `json:"uuid"`
	RPC        string `json:"rpc,omitempty"`
	Known      bool   `json:"known"`
	OffsetUsec int64  `json:"offset_usec"`
	BoundUsec  int64  `json:"bound_usec"`
	AgeMS      uint64 `json:"age_ms"`
	Verdict    string `json:"verdict,omitempty"`
	State      string `json:"state,omitempty"`
}

func (a *app) clusterClock() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clock",
		Short: "show every server's clock, and how far each is from the others'",
		Long: `Show the state of every server's clock (open: it gives timestamps out; held, fenced: it doesn't), what was seen of it last,
its source and error bound, and its offset to each other server's wall clock as measured by their beats.`,
		Args: cobra.NoArgs,
	}
	format := tableFormat(cmd, "how to print it", "json")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		clocks, err := a.gatherClocks(cmd.Context(), c, a.questionTimeout(cmd))
		if err != nil {
			return err
		}
		if format.value == "json" {
			return printJSON(a.Out, clocksToJSON(clocks))
		}
		return a.printClocks(clocks)
	})
	return cmd
}

func clocksToJSON(clocks []serverClock) any {
	doc := struct {
		Servers []clockJSON `json:"servers"`
	}{[]clockJSON{}}
	for _, s := range clocks {
		k := s.clock
		j := clockJSON{
			UUID: s.id, RPC: s.addr, Role: s.role, State: k.GetState(), Reason: k.GetReason(), Verdict: k.GetVerdict(), Source: k.GetSource(),
			Detection: k.GetDetection(), Extrapolating: k.GetExtrapolating(), MaxErrorUsec: k.GetMaxErrorUsec(),
			DisplacedUsec: k.GetDisplacedUsec(), WallMinusMono: k.GetWallMinusMonotonicUsec(), Latest: k.GetLatest(), Now: k.GetNow(),
			Mark: k.GetMark(), Promise: k.GetPromise(), Opinion: k.GetOpinion(), Peers: []clockPeerJSON{},
		}
		if s.err != nil {
			j.State, j.Reason = "unreachable", s.err.Error()
		}
		for _, p := range k.GetPeers() {
			j.Peers = append(j.Peers, clockPeerJSON{
				p.GetServerId(), addressOf(clocks, p.GetServerId()), p.GetKnown(), p.GetOffsetUsec(), p.GetBoundUsec(), p.GetAgeMs(),
				p.GetVerdict(), p.GetState(),
			})
		}
		doc.Servers = append(doc.Servers, j)
	}
	return doc
}

// addressOf is where a server is, as far as it is in the list.
func addressOf(clocks []serverClock, id string) string {
	for _, s := range clocks {
		if s.id == id {
			return s.addr
		}
	}
	return ""
}

func (a *app) printClocks(clocks []serverClock) error {
	g := newGrid("SERVER", "ROLE", "STATE", "VERDICT", "SOURCE", "MAX ERROR", "DISPLACED", "TIME", "DETAIL").numbers(5, 6)
	offsets := newGrid("SERVER", "OTHER", "OFFSET", "WITHIN", "AGE", "OTHER'S STATE").numbers(2, 3, 4)
	for _, s := range clocks {
		if s.clock == nil {
			g.add(s.addr, s.role, "unreachable", "-", "-", "-", "-", "-", s.err)
			continue
		}
		k := s.clock
		source := k.GetSource()
		if k.GetExtrapolating() {
			source += " (lost)"
		}
		g.add(s.addr, s.role, k.GetState(), k.GetVerdict(), source, span(k.GetMaxErrorUsec()), span(k.GetDisplacedUsec()),
			hybridtime.Timestamp(k.GetNow()), strings.TrimPrefix(k.GetReason(), "clock "))
		for _, p := range k.GetPeers() {
			other := addressOf(clocks, p.GetServerId())
			if other == "" {
				other = p.GetServerId()
			}
			if !p.GetKnown() {
				offsets.add(s.addr, other, "-", "-", "-", "not heard")
				continue
			}
			offsets.add(s.addr, other, offsetText(p), span(p.GetBoundUsec()), fmt.Sprintf("%d ms", p.GetAgeMs()), p.GetState())
		}
	}
	if err := g.print(a.Out); err != nil || len(offsets.rows) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(a.Out, "\nOffsets: the other's wall clock less the server's"); err != nil {
		return err
	}
	return offsets.print(a.Out)
}

func offsetText(p *nyalav1.ClockPeer) string {
	text := span(p.GetOffsetUsec())
	if p.GetOffsetUsec() >= 0 {
		text = "+" + text
	}
	return text
}

// span writes microseconds for people: to the microsecond below a second, to the millisecond above.
func span(usec int64) string {
	d := time.Duration(usec) * time.Microsecond
	if d.Abs() >= time.Second {
		d = d.Round(time.Millisecond)
	}
	return d.String()
}
