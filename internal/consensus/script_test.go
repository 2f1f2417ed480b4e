package consensus_test

import (
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/consensus"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
)

// TestScripts steps cores by hand. Nothing happens by itself: messages lie in flight until they are delivered, appends
// until they are committed, entries until they are applied. Commands (server N has replica N+1, there is one tablet):
//
//	cluster servers=3              start; clocks stand at second 1000
//	campaign s=0                   ask for leadership now
//	tick s=0 [n=1]
//	deliver [from=0] [to=1] [type=MsgVote] [n=1]   deliver what is in flight and fits, oldest first; n bounds how many
//	drop (the same)                lose it
//	commit s=0                     make what is ready durable
//	apply s=0                      apply what is committed
//	run                            deliver, commit and apply until everything rests
//	propose s=0 [n=1]; read s=0; close s=0 at=1000.5 (seconds); transfer s=0
//	clock s=0 offset=30s
//	space s=0 [full]
//	crash s=0; boot s=0
//	show                           what is under way, and each replica's state
//
// Each prints what changed: messages that left, appends that are ready, answers, changes of leadership.
func TestScripts(t *testing.T) {
	old := crand.Reader
	defer func() { crand.Reader = old }()
	runScripts(t, func() func(*testing.T, command) string {
		crand.Reader = seededReader{rand.New(rand.NewPCG(1, 1))}
		var s *script
		return func(t *testing.T, c command) string {
			if c.name == "cluster" {
				s = newScript(c.number(t, "servers", 3))
				return s.news()
			}
			s.do(t, c)
			if f := s.w.check.fault; f != "" {
				return "FAULT: " + f + "\n"
			}
			return s.news()
		}
	})
}

type script struct {
	w               *world
	seenFlight      []*packet
	seenApp, seenAp map[*simServer]int
}

func newScript(n int) *script {
	s := &script{w: newWorld(worldOptions{seed: 1, servers: n, tablets: 1})}
	s.w.calm = true
	s.w.boots()
	s.w.trace.lines = nil
	return s
}

func (s *script) do(t *testing.T, c command) {
	w, tablet := s.w, s.w.tablets[0]
	srv, n := w.servers[c.number(t, "s", 0)], c.number(t, "n", 1)
	switch c.name {
	case "campaign":
		srv.core.Campaign(tablet)
		w.take(srv)
	case "tick":
		for range n {
			srv.core.Tick()
			w.take(srv)
		}
	case "deliver", "drop":
		s.deliver(t, c)
	case "commit":
		w.commit(srv)
	case "apply":
		for len(srv.applies) > 0 {
			w.apply(srv)
		}
	case "run":
		w.settle(1, func() bool { return false })
	case "propose", "read", "transfer":
		for range n {
			w.ask(srv, c.name, tablet, 0)
		}
	case "close":
		at, err := strconv.ParseFloat(c.text("at", "0"), 64)
		if err != nil {
			t.Fatal(err)
		}
		w.ask(srv, "close", tablet, hybridtime.FromMicros(int64(at*1e6), 0))
	case "clock":
		off, err := time.ParseDuration(c.text("offset", "0s"))
		if err != nil {
			t.Fatal(err)
		}
		srv.clock.offset = off
	case "space":
		srv.noSpace = c.has("full")
		srv.core.SetOutOfSpace(srv.noSpace)
		w.take(srv)
	case "crash":
		w.crash(srv)
	case "boot":
		w.boot(srv)
	case "show":
		for _, srv := range w.servers {
			if !srv.up {
				w.trace.add("s%d down", srv.id)
				continue
			}
			st := srv.status(tablet)
			w.trace.add("s%d %v term %d leader %d log %d..%d committed %d applied %d", srv.id, st.Role, st.Term, st.Leader, st.FirstIndex, st.LastIndex, st.Commit, st.Applied)
		}
		s.seenFlight, s.seenApp, s.seenAp = nil, nil, nil
	default:
		t.Fatalf("unknown command %s", c.name)
	}
}

// deliver delivers or drops what is in flight and fits.
func (s *script) deliver(t *testing.T, c command) {
	from, to, n, typ := c.number(t, "from", -1), c.number(t, "to", -1), c.number(t, "n", 1000), c.text("type", "")
	var hand []*packet
	s.w.flight = slices.DeleteFunc(s.w.flight, func(p *packet) bool {
		fits := len(hand) < n && (from < 0 || p.from == from) && (to < 0 || p.to == to) && (typ == "" || slices.Contains(strings.Fields(describePacket(p)), typ))
		if fits {
			hand = append(hand, p)
		}
		return fits
	})
	rest := s.w.flight
	for _, p := range hand {
		if c.name == "drop" {
			s.w.trace.add("drop s%d->s%d %s", p.from, p.to, describePacket(p))
			continue
		}
		s.w.flight = []*packet{p}
		s.w.deliver()
		rest = append(rest, s.w.flight...)
	}
	s.w.flight = rest
}

// news is what has changed since the last command.
func (s *script) news() string {
	var b strings.Builder
	for _, l := range s.w.trace.lines {
		fmt.Fprintln(&b, l)
	}
	s.w.trace.lines = nil
	for _, p := range s.w.flight {
		if !slices.Contains(s.seenFlight, p) {
			fmt.Fprintf(&b, "in flight s%d->s%d %s %s\n", p.from, p.to, p.channel, describePacket(p))
		}
	}
	s.seenFlight = slices.Clone(s.w.flight)
	apps, aps := map[*simServer]int{}, map[*simServer]int{}
	for _, srv := range s.w.servers {
		if apps[srv] = len(srv.appends); apps[srv] != s.seenApp[srv] {
			for _, a := range srv.appends {
				fmt.Fprintf(&b, "to commit s%d %s\n", srv.id, describeAppend(a))
			}
		}
		if aps[srv] = len(srv.applies); aps[srv] != s.seenAp[srv] {
			for _, a := range srv.applies {
				fmt.Fprintf(&b, "to apply s%d %d..%d\n", srv.id, a.Entries[0].Index, a.Entries[len(a.Entries)-1].Index)
			}
		}
	}
	s.seenApp, s.seenAp = apps, aps
	if b.Len() == 0 {
		return "ok\n"
	}
	return b.String()
}

func describePacket(p *packet) string {
	m := new(nyalav1.GroupMessage)
	if err := proto.Unmarshal(p.bytes, m); err != nil {
		invariant.Check(false, "%v", err)
	}
	return describe(m)
}

func describeAppend(a consensus.Append) string {
	var parts []string
	if n := len(a.Entries); n > 0 {
		parts = append(parts, fmt.Sprintf("entries %d.%d..%d", a.Entries[n-1].GetTerm(), a.Entries[0].GetIndex(), a.Entries[n-1].GetIndex()))
	}
	if hs := a.HardState; hs != nil {
		parts = append(parts, fmt.Sprintf("term %d vote %d commit %d", hs.GetTerm(), hs.GetVote(), hs.GetCommit()))
	}
	if a.Promise != 0 {
		parts = append(parts, fmt.Sprintf("promise %.3f", float64(a.Promise.Micros())/1e6))
	}
	if a.CutBehind != (ident.OpID{}) {
		parts = append(parts, "cut behind "+a.CutBehind.String())
	}
	return strings.Join(parts, ", ")
}
