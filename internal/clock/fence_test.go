package clock

import (
	"fmt"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
)

// servers is a few machines with a clock each that send each other beats.
type servers struct {
	t        *testing.T
	machines []*machine
	clocks   []*Clock
	cut      map[[2]int]bool // beats from the first to the second don't arrive
	ticks    int
}

func newServers(t *testing.T, n int, change func(*Config)) *servers {
	s := &servers{t: t, cut: map[[2]int]bool{}}
	for range n {
		m := newMachine()
		s.machines = append(s.machines, m)
		s.clocks = append(s.clocks, sampling(newClock(t, m, func(cfg *Config) {
			cfg.OtherServers = n - 1
			if change != nil {
				change(cfg)
			}
		})))
	}
	return s
}

func serverName(i int) ident.ServerID { return ident.ServerID(fmt.Sprintf("server-%d", i)) }

func (s *servers) all(d time.Duration) {
	for _, m := range s.machines {
		m.advance(d)
	}
}

// run lets time pass everywhere: samples each 100 ms, and each 500 ms one beat between every two servers, which takes 3 ms
// to arrive.
func (s *servers) run(d time.Duration) {
	for ; d > 0; d -= 100 * time.Millisecond {
		s.all(100 * time.Millisecond)
		for _, c := range s.clocks {
			c.sample()
		}
		if s.ticks++; s.ticks%5 != 0 {
			continue
		}
		beats := map[[2]int]Beat{}
		for i, from := range s.clocks {
			for j := range s.clocks {
				if i != j && !s.cut[[2]int{i, j}] {
					beats[[2]int{i, j}] = from.Beat(serverName(j))
				}
			}
		}
		s.all(3 * time.Millisecond)
		for pair, b := range beats {
			s.clocks[pair[1]].HearBeat(serverName(pair[0]), b)
		}
	}
}

// until runs until the condition holds and returns how long that took, at most the limit.
func (s *servers) until(limit time.Duration, cond func() bool) time.Duration {
	for passed := time.Duration(0); passed < limit; passed += 100 * time.Millisecond {
		if cond() {
			return passed
		}
		s.run(100 * time.Millisecond)
	}
	return limit
}

func (s *servers) open(i int) bool { return s.clocks[i].Status().State == Open }

func (s *servers) wantStates(want ...State) {
	s.t.Helper()
	for i, w := range want {
		if st := s.clocks[i].Status(); st.State != w {
			s.t.Errorf("server %d is %v, want %v: %s", i, st.State, w, st.Reason)
		}
	}
}

// TestOffsets shows that offsets are measured to within half the round trip, and that the bound says so.
func TestOffsets(t *testing.T) {
	s := newServers(t, 3, nil)
	s.run(3 * time.Second)
	s.machines[1].stepBy(2 * time.Second)
	s.run(3 * time.Second)
	for _, p := range s.clocks[0].Status().Peers {
		want := time.Duration(0)
		if p.Peer == serverName(1) {
			want = -2 * time.Second
		}
		if off := (p.Ahead - want).Abs(); off > p.Bound || p.Bound > 10*time.Millisecond {
			t.Errorf("%s: ahead %v ± %v, want %v", p.Peer, p.Ahead, p.Bound, want)
		}
	}
	s.wantStates(Open, Open, Open)
}

// TestOneJumps is fault 8 and T02 for a server among three: it fences itself at once and nobody else is touched. Once it is
// right it must agree with the others for ten seconds before it is back.
func TestOneJumps(t *testing.T) {
	for _, jump := range []time.Duration{901 * time.Second, 8 * time.Hour, 40 * 8766 * time.Hour, -time.Hour, -8 * time.Hour} {
		t.Run(jump.String(), func(t *testing.T) {
			s := newServers(t, 3, nil)
			s.run(3 * time.Second)
			last := mustNow(t, s.clocks[0])
			s.machines[0].stepBy(jump)
			mustRefuse(t, s.clocks[0], "jumped")
			s.run(20 * time.Second)
			s.wantStates(Fenced, Open, Open)
			if err := s.clocks[0].CheckAhead(mustNow(t, s.clocks[1])); err != nil {
				t.Errorf("what a good server gives out is refused: %v", err)
			}
			s.machines[0].stepBy(-jump)
			took := s.until(30*time.Second, func() bool { return s.open(0) })
			if took < 9*time.Second || took > 13*time.Second {
				t.Errorf("it came back after %v", took)
			}
			if ts := mustNow(t, s.clocks[0]); ts <= last {
				t.Errorf("%v after %v", ts, last)
			}
			s.wantStates(Open, Open, Open)
		})
	}
}

// TestAllowedStepIsHeld is T02 (c): a step that the threshold allows but that is more than clocks may differ. Nothing is
// given out by the bad clock until the others have been heard, who say that it is wrong.
func TestAllowedStepIsHeld(t *testing.T) {
	s := newServers(t, 3, nil)
	s.run(3 * time.Second)
	s.machines[0].stepBy(899 * time.Second)
	mustRefuse(t, s.clocks[0], "held", "waiting")
	if _, fenced := s.clocks[0].Fenced(); fenced {
		t.Error("a hold is no fence")
	}
	took := s.until(10*time.Second, func() bool { return s.clocks[0].Status().State == Fenced })
	if took > 1500*time.Millisecond {
		t.Errorf("it took %v to be blamed", took)
	}
	mustRefuse(t, s.clocks[0], "2 of 2 servers", "ahead")
	s.machines[0].stepBy(-899 * time.Second)
	if took := s.until(time.Minute, func() bool { return s.open(0) }); took > 15*time.Second {
		t.Errorf("it came back after %v", took)
	}
}

// TestCorrectionIsLetPass shows that a large step which makes a clock right is held for about one beat and no longer.
func TestCorrectionIsLetPass(t *testing.T) {
	s := newServers(t, 3, nil)
	s.machines[0].stepBy(-8 * time.Second) // behind, within what clocks may differ
	s.run(3 * time.Second)
	s.wantStates(Open, Open, Open)
	s.machines[0].stepBy(11 * time.Second)
	mustRefuse(t, s.clocks[0], "held")
	if took := s.until(10*time.Second, func() bool { return s.open(0) }); took > 1500*time.Millisecond {
		t.Errorf("held for %v", took)
	}
}

// TestSlowDrift shows that a clock which is led away by slewing alone is fenced once it is off from most of the others, that
// its guards then go by the others' time, and that it is back once it is right.
func TestSlowDrift(t *testing.T) {
	s := newServers(t, 3, func(cfg *Config) { cfg.MaxClockSyncError = time.Second })
	s.run(3 * time.Second)
	s.machines[2].ppm = 20_000
	s.until(2*time.Minute, func() bool { return !s.open(2) })
	s.wantStates(Open, Open, Fenced)
	mustRefuse(t, s.clocks[2], "2 of 2 servers")
	s.run(10 * time.Second)
	if err := s.clocks[2].CheckAhead(mustNow(t, s.clocks[0]).Add(1200 * time.Millisecond)); err == nil {
		t.Error("the guard goes by the clock that is off")
	}
	s.machines[2].ppm = -20_000
	s.until(time.Minute, func() bool { return s.open(2) })
	s.machines[2].ppm = 0
	s.wantStates(Open, Open, Open)
}

// TestTwoServers shows that with no third opinion nobody is blamed.
func TestTwoServers(t *testing.T) {
	s := newServers(t, 2, func(cfg *Config) { cfg.MaxClockSyncError = time.Second })
	s.run(3 * time.Second)
	s.machines[1].ppm = 20_000
	s.run(2 * time.Minute)
	s.wantStates(Open, Open)
	if o := s.clocks[0].Status().Opinion; o.Heard != 1 || o.Off != 1 || o.Blame || o.Agree {
		t.Errorf("opinion %+v", o)
	}
}

// TestTwoJumpOneStays shows that servers which know their own clocks to be wrong can't blame the one that is right.
func TestTwoJumpOneStays(t *testing.T) {
	s := newServers(t, 3, nil)
	s.run(3 * time.Second)
	s.machines[0].stepBy(time.Hour)
	s.machines[1].stepBy(2 * time.Hour)
	s.run(30 * time.Second)
	s.wantStates(Fenced, Fenced, Open)
}

// TestAccept shows that an operator's word opens the fences where nothing else would.
func TestAccept(t *testing.T) {
	s := newServers(t, 3, nil)
	s.run(3 * time.Second)
	for i, m := range s.machines {
		m.stepBy(time.Duration(i+1) * time.Hour)
	}
	s.run(30 * time.Second)
	s.wantStates(Fenced, Fenced, Fenced)
	s.clocks[1].Accept()
	s.run(30 * time.Second)
	s.wantStates(Fenced, Open, Fenced)
	mustNow(t, s.clocks[1])
	s.machines[0].stepBy(time.Hour)
	s.machines[2].stepBy(-time.Hour)
	s.run(15 * time.Second)
	s.wantStates(Open, Open, Open)
	s.machines[1].stepBy(time.Hour)
	s.run(time.Second)
	s.wantStates(Open, Fenced, Open)
}

// TestAllLeap shows that a leap of all of a server's clocks is held until others were heard, who then tell.
func TestAllLeap(t *testing.T) {
	s := newServers(t, 3, nil)
	s.run(3 * time.Second)
	m := s.machines[0]
	m.do(func() { m.leapt += int64(11 * time.Second) })
	mustRefuse(t, s.clocks[0], "held")
	s.run(2 * time.Second)
	s.wantStates(Fenced, Open, Open)
	mustRefuse(t, s.clocks[0], "servers")

	// The same for a process that was stopped for as long: the others agree, and it is back with the second beat.
	s = newServers(t, 3, nil)
	s.run(3 * time.Second)
	s.all(11 * time.Second)
	for _, c := range s.clocks {
		mustRefuse(t, c, "held")
	}
	s.run(2 * time.Second)
	s.wantStates(Open, Open, Open)
}

// TestUnheard shows that silence is no opinion: nobody is blamed, and a fenced server stays so until it hears others.
func TestUnheard(t *testing.T) {
	s := newServers(t, 3, nil)
	s.run(3 * time.Second)
	for _, pair := range [][2]int{{1, 0}, {2, 0}} {
		s.cut[pair] = true
	}
	s.machines[0].stepBy(time.Hour)
	s.run(20 * time.Second)
	s.machines[0].stepBy(-time.Hour)
	s.run(time.Minute)
	s.wantStates(Fenced, Open, Open)
	clear(s.cut)
	s.run(15 * time.Second)
	s.wantStates(Open, Open, Open)
	s.clocks[0].ForgetPeer(serverName(1))
	if n := len(s.clocks[0].Status().Peers); n != 1 && n != 2 {
		t.Errorf("%d peers", n)
	}
}

// TestRestartAmongOthers shows that a server off for a week is fenced until others agree, for about a beat, and one whose
// clock is wrong stays fenced (fault 12).
func TestRestartAmongOthers(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for _, wrong := range []time.Duration{0, time.Hour} {
		s := newServers(t, 3, func(cfg *Config) { cfg.TimeSource = SourceAuto })
		s.run(3 * time.Second)
		_, marks := marked(t, s.clocks[0])
		for i, m := range s.machines {
			if i != 0 {
				m.reboot(week)
				s.clocks[i] = sampling(newClock(t, m, func(cfg *Config) { cfg.OtherServers = 2 }))
			}
		}
		m := s.machines[0]
		m.reboot(week)
		m.stepBy(wrong)
		m.kernel.Synced = false
		s.clocks[0] = sampling(restartClock(t, m, marks, func(cfg *Config) {
			cfg.OtherServers, cfg.TimeSource = 2, SourceAuto
		}))
		mustRefuse(t, s.clocks[0], "started anew")
		s.run(2 * time.Second)
		if wrong == 0 {
			s.wantStates(Open, Open, Open)
			mustNow(t, s.clocks[0])
		} else {
			s.run(20 * time.Second)
			s.wantStates(Fenced, Open, Open)
		}
	}
}

// TestOpine is a table for the pure function: who agrees, who is to blame.
func TestOpine(t *testing.T) {
	const bound = 10 * time.Second
	at := func(ahead, bound time.Duration) PeerOffset { return PeerOffset{Ahead: ahead, Bound: bound} }
	fencedAt := func(ahead time.Duration) PeerOffset { return PeerOffset{Ahead: ahead, State: Fenced} }
	for _, c := range []struct {
		name         string
		table        []PeerOffset
		others       int
		agree, blame bool
		ahead        time.Duration
	}{
		{"nobody", nil, 0, false, false, 0},
		{"nobody heard", nil, 2, false, false, 0},
		{"one agrees of one", []PeerOffset{at(time.Second, 0)}, 1, true, false, time.Second},
		{"one agrees of two", []PeerOffset{at(time.Second, 0)}, 2, false, false, time.Second},
		{"one off of one", []PeerOffset{at(time.Hour, 0)}, 1, false, false, time.Hour},
		{"one outlier of two", []PeerOffset{at(time.Second, 0), at(time.Hour, 0)}, 2, false, false, time.Second},
		{"one outlier of three", []PeerOffset{at(0, 0), at(time.Hour, 0), at(time.Second, 0)}, 3, true, false, time.Second},
		{"two off of two", []PeerOffset{at(-time.Hour, 0), at(-time.Hour, 0)}, 4, false, true, -time.Hour},
		{"two off of three", []PeerOffset{at(-time.Hour, 0), at(0, 0), at(time.Hour, 0)}, 3, false, true, 0},
		{"two off of four", []PeerOffset{at(0, 0), at(0, 0), at(time.Hour, 0), at(time.Hour, 0)}, 4, false, false, 0},
		{"at the bound", []PeerOffset{at(bound, 0)}, 1, true, false, bound},
		{"a hair beyond", []PeerOffset{at(bound+1, 0), at(bound+1, 0)}, 2, false, true, bound + 1},
		{"too unsure to agree", []PeerOffset{at(bound, 1)}, 1, false, false, bound},
		{"too unsure to blame", []PeerOffset{at(2*bound, bound), at(2*bound, bound)}, 2, false, false, 2 * bound},
		{"accusers that are fenced", []PeerOffset{fencedAt(time.Hour), fencedAt(time.Hour)}, 2, false, false, time.Hour},
		{"fenced ones that agree", []PeerOffset{fencedAt(0), fencedAt(0)}, 2, true, false, 0},
	} {
		if o := Opine(c.table, c.others, bound); o.Agree != c.agree || o.Blame != c.blame || o.Ahead != c.ahead {
			t.Errorf("%s: %+v", c.name, o)
		}
	}
}

// TestOffsetArithmetic shows what four readings say, and that readings which can't be are dropped.
func TestOffsetArithmetic(t *testing.T) {
	for _, c := range []struct {
		name                             string
		sent, received, replied, arrived int64
		ahead                            int64
		bound                            time.Duration
		ok                               bool
	}{
		{"equal ways", 100, 1150, 1650, 700, 1000, 51, true},
		{"slow there", 100, 1200, 1700, 700, 1050, 51, true},
		{"an instant", 100, 100, 100, 100, 0, 1, true},
		{"clocks of different rates", 100, 1100, 2100, 1090, 1005, 6, true},
		{"peer stepped back between", 100, 1150, 900, 700, 0, 0, false},
		{"peer stepped forward between", 100, 1150, 9000, 700, 0, 0, false},
		{"arrived before it was sent", 100, 1150, 1650, 50, 0, 0, false},
	} {
		ahead, bound, ok := offset(c.sent, c.received, c.replied, c.arrived)
		if ahead != c.ahead || bound != c.bound || ok != c.ok {
			t.Errorf("%s: %v ± %v, %v", c.name, ahead, bound, ok)
		}
	}
}

// TestAcceptRightAfterMending shows that the word is for the wall clock of that moment, and not for what was seen last: one
// that was set right a moment before isn't taken for one that jumps back.
func TestAcceptRightAfterMending(t *testing.T) {
	m := newMachine()
	c := sampling(newClock(t, m, nil))
	m.run(c, time.Second)
	m.stepBy(time.Hour)
	mustRefuse(t, c, "jumped")
	m.stepBy(-time.Hour)
	c.Accept()
	mustNow(t, c)
	m.run(c, time.Second)
	if s := c.Status(); s.State != Open || s.Displaced != 0 {
		t.Errorf("%v, displaced by %v", s.State, s.Displaced)
	}
}

// TestWordsFromBeforeAStep shows that neither the others' agreement nor a source's word that is older than a step speaks for
// the clock after it: a server that waits at its start, behind its mark, isn't let in by the very jump that takes it past it.
func TestWordsFromBeforeAStep(t *testing.T) {
	agree := Opinion{Others: 2, Heard: 2, Right: 2, Agree: true}
	f := fence{maxError: 10 * time.Second}
	f.close(Fenced, causeBehind, 0, "behind the mark")
	f.next = causeUnknown
	for now := int64(0); now < int64(time.Minute); now += int64(time.Second) {
		f.step(sighting{now: now, opinion: agree, later: agree, behind: 6 * time.Minute, sourceRight: true})
	}
	jump := Judgement{Step: time.Hour, Displaced: time.Hour, Refused: true}
	f.step(sighting{now: int64(time.Minute), j: jump, opinion: agree, later: agree, behind: -54 * time.Minute, sourceRight: true})
	if f.state != Fenced {
		t.Fatal("the jump opened the fence")
	}
	later := int64(time.Minute)
	for range 3 {
		later += int64(time.Second)
		f.step(sighting{now: later, j: Judgement{Displaced: time.Hour, Refused: true}, opinion: agree, later: agree, behind: -54 * time.Minute, sourceRight: true})
		if f.state != Fenced {
			t.Fatal("a source that said so before the jump, too, opened the fence")
		}
	}
}
