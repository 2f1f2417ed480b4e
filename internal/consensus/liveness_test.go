package consensus

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// serversAt steps what one server knows of others.
type serversAt struct {
	*Servers
	t *testing.T
}

func newServersAt(t *testing.T) *serversAt {
	return &serversAt{NewServers(ServersConfig{Self: "a", HeartbeatTicks: 2, SilentTicks: 6}), t}
}

func (s *serversAt) ticks(n int) {
	for range n {
		s.Tick()
	}
}

// news returns the one thing that is new, and what is sent.
func (s *serversAt) news() (ServerNews, []ServerOutgoing) {
	s.t.Helper()
	d := s.Take()
	if len(d.News) != 1 {
		s.t.Fatalf("news %+v", d.News)
	}
	return d.News[0], d.Messages
}

func (s *serversAt) quiet(why string) {
	s.t.Helper()
	if d := s.Take(); len(d.News)+len(d.Messages)+len(d.Lists)+len(d.Compare) > 0 {
		s.t.Fatalf("%s: %+v", why, d)
	}
}

func question(about string) *nyalav1.ServerMessage {
	return &nyalav1.ServerMessage{Kind: &nyalav1.ServerMessage_Question{Question: &nyalav1.SilenceQuestion{ServerId: about}}}
}

func answer(about string, hears bool) *nyalav1.ServerMessage {
	return &nyalav1.ServerMessage{Kind: &nyalav1.ServerMessage_Answer{Answer: &nyalav1.SilenceAnswer{ServerId: about, Hears: hears}}}
}

// TestSilence follows a server that falls silent: it is told once, another is asked about it once per pair and again each heartbeat
// interval until it says that it is deaf too; and one word of it ends all that.
func TestSilence(t *testing.T) {
	s := newServersAt(t)
	s.HearBeat("b", 1, QuietSum{}, QuietSum{})
	s.HearBeat("c", 1, QuietSum{}, QuietSum{})
	if n := s.Take().News; len(n) != 2 || !n[0].Heard || !n[0].Beats || n[0].Restarted {
		t.Fatalf("%+v", n)
	}
	s.ticks(5)
	s.Heard("c")
	s.quiet("all are heard")
	s.Tick()
	if n, _ := s.news(); n.Server != "b" || n.Heard || n.Beats || len(n.Deaf) > 0 {
		t.Fatalf("%+v", n)
	}
	for range 3 {
		s.Ask(Question{About: "b", To: "c"})
	}
	s.Ask(Question{About: "b", To: "a"})
	s.Ask(Question{About: "c", To: "b"}) // is heard
	if d := s.Take(); len(d.Messages) != 1 || d.Messages[0].To != "c" || d.Messages[0].Message.GetQuestion().GetServerId() != "b" {
		t.Fatalf("%+v", d)
	}
	s.Receive("c", answer("b", true))
	s.quiet("c hears it")
	s.Heard("c")
	s.ticks(2)
	if d := s.Take(); len(d.Messages) != 1 {
		t.Fatalf("it isn't asked again: %+v", d)
	}
	s.Receive("c", question("b")) // who asks doesn't hear it
	n, sent := s.news()
	if !n.Deaf["c"] || n.Heard || len(sent) != 1 || sent[0].Message.GetAnswer().GetHears() {
		t.Fatalf("%+v, %v", n, sent)
	}
	s.Heard("c")
	s.ticks(4)
	s.quiet("who is deaf is asked no more")
	s.Heard("b")
	if n, _ := s.news(); n.Server != "b" || !n.Heard || n.Beats {
		t.Fatalf("%+v", n)
	}
	s.HearBeat("b", 1, QuietSum{}, QuietSum{})
	if n, _ := s.news(); !n.Beats || n.Restarted {
		t.Fatalf("%+v", n)
	}
}

// TestDeafBefore: who has said lately that it doesn't hear a server counts when that falls silent here; an old word doesn't.
func TestDeafBefore(t *testing.T) {
	for _, old := range []bool{false, true} {
		s := newServersAt(t)
		s.Heard("b")
		s.Heard("c")
		s.ticks(3)
		s.Take()
		s.Receive("c", question("b"))
		if d := s.Take(); len(d.News) > 0 || !d.Messages[0].Message.GetAnswer().GetHears() {
			t.Fatalf("%+v", d)
		}
		if old {
			s.Heard("b")
			s.Heard("c")
			s.ticks(3)
		}
		s.Heard("c")
		s.ticks(3)
		if n, _ := s.news(); n.Server != "b" || n.Deaf["c"] == old {
			t.Fatalf("old %v: %+v", old, n)
		}
	}
}

// TestIncarnations: a later one is another process; an earlier one is the last word of one that is gone.
func TestIncarnations(t *testing.T) {
	s := newServersAt(t)
	s.HearBeat("b", 2, QuietSum{}, QuietSum{})
	s.Take()
	s.HearBeat("b", 3, QuietSum{}, QuietSum{})
	if n, _ := s.news(); !n.Restarted || !n.Heard {
		t.Fatalf("%+v", n)
	}
	s.HearBeat("b", 2, QuietSum{}, QuietSum{})
	s.quiet("an old beat")
	s.HearBeat("c", 0, QuietSum{}, QuietSum{})
	if n, _ := s.news(); !n.Heard || n.Beats {
		t.Fatalf("a server without quiet groups: %+v", n)
	}
}

// TestLists: a difference brings the list when two beats have shown it and nothing changed between them; it is taken whole or not.
func TestLists(t *testing.T) {
	s := newServersAt(t)
	s.HearBeat("b", 1, QuietSum{}, QuietSum{})
	s.Take()
	theirs := QuietSum{Count: 2, Hash: 7}
	s.HearBeat("b", 1, theirs, QuietSum{Changes: 1})
	s.HearBeat("b", 1, theirs, QuietSum{Changes: 2})
	s.HearBeat("b", 1, QuietSum{Count: 3, Hash: 9}, QuietSum{Changes: 2})
	s.HearBeat("b", 1, QuietSum{}, QuietSum{Changes: 3})
	s.quiet("handshakes under way")
	s.HearBeat("b", 1, theirs, QuietSum{Changes: 3})
	s.HearBeat("b", 1, theirs, QuietSum{Changes: 3})
	s.quiet("two beats at once")
	s.Tick()
	s.HearBeat("b", 1, theirs, QuietSum{Changes: 3})
	d := s.Take()
	if len(d.Messages) != 1 || d.Messages[0].Message.GetListRequest() == nil {
		t.Fatalf("%+v", d)
	}
	request := d.Messages[0].Message.GetListRequest().GetRequest()
	s.HearBeat("b", 1, theirs, QuietSum{Changes: 3})
	s.HearBeat("b", 1, theirs, QuietSum{Changes: 3})
	s.quiet("one list at a time")

	other := NewServers(ServersConfig{Self: "b", HeartbeatTicks: 2, SilentTicks: 6})
	other.Receive("a", d.Messages[0].Message)
	groups := make([]*nyalav1.QuietGroup, listPart+3)
	for i := range groups {
		groups[i] = &nyalav1.QuietGroup{TabletId: make([]byte, 16), Term: uint64(i)}
	}
	other.SendList(other.Take().Lists[0], groups)
	parts := other.Take().Messages
	if len(parts) != 2 {
		t.Fatalf("%d parts", len(parts))
	}
	s.Receive("b", parts[1].Message)
	s.quiet("a list without its first part")
	s.Receive("b", parts[0].Message)
	s.Receive("b", parts[0].Message)
	s.Receive("b", parts[1].Message)
	if d := s.Take(); len(d.Compare) != 1 || d.Compare[0].From != "b" || len(d.Compare[0].Groups) != len(groups) {
		t.Fatalf("%+v", d)
	}
	s.Receive("b", parts[1].Message)
	s.quiet("a list that nobody asked for")
	other.SendList(ListRequest{"a", request}, nil)
	if parts := other.Take().Messages; len(parts) != 1 || !parts[0].Message.GetList().GetLast() {
		t.Fatalf("an empty list: %+v", parts)
	}
}

// TestQuietSums: a sum is the same whatever the order, and what is taken back leaves nothing.
func TestQuietSums(t *testing.T) {
	p := NewQuietPairs()
	var hashes []uint64
	for i := range 100 {
		hashes = append(hashes, quietHash([16]byte{byte(i)}, 3, 1, 2))
	}
	if slices.Sort(hashes); len(slices.Compact(hashes)) != 100 {
		t.Fatal("two groups with one hash")
	}
	for _, h := range hashes {
		p.pair("b").leads.add(h)
		p.pair("c").follows.add(h)
	}
	slices.Reverse(hashes)
	for _, h := range hashes[:50] {
		p.pair("b").leads.remove(h)
	}
	for _, h := range hashes[:50] {
		p.pair("c").follows.remove(h)
	}
	if !p.Leads("b").same(p.Follows("c")) || p.Leads("b").Count != 50 {
		t.Fatal(p.Leads("b"), p.Follows("c"))
	}
	if quietHash([16]byte{1}, 3, 1, 2) == quietHash([16]byte{1}, 3, 2, 1) {
		t.Fatal("leader and follower are the same to it")
	}
}

// FuzzServersReceive gives a server whatever another may send: nothing breaks, and what is kept stays within its bounds.
func FuzzServersReceive(f *testing.F) {
	for _, m := range []*nyalav1.ServerMessage{
		question("b"), question("a"), answer("b", false),
		{Kind: &nyalav1.ServerMessage_ListRequest{ListRequest: &nyalav1.QuietListRequest{Request: 1}}},
		{Kind: &nyalav1.ServerMessage_List{List: &nyalav1.QuietList{Request: 1, Last: true, Groups: []*nyalav1.QuietGroup{{TabletId: make([]byte, 16), Term: 1}, {}}}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(nyalav1.ServerMessage)
		if proto.Unmarshal(b, m) != nil {
			return
		}
		s := NewServers(ServersConfig{Self: "a", HeartbeatTicks: 2, SilentTicks: 6})
		s.HearBeat("b", 1, QuietSum{}, QuietSum{})
		s.HearBeat("c", 1, QuietSum{}, QuietSum{})
		s.HearBeat("c", 1, QuietSum{Count: 1}, QuietSum{})
		s.Tick()
		s.HearBeat("c", 1, QuietSum{Count: 1}, QuietSum{})
		s.Receive("c", m)
		for range 7 {
			s.Tick()
		}
		s.Receive("c", m)
		for _, l := range s.Take().Compare {
			NewCore(CoreConfig{HeartbeatTicks: 2, ElectionTicks: 6}, newTestClock()).CompareQuiet(l)
		}
		for _, id := range []ident.ServerID{"a", "d"} {
			if s.known[id] != nil {
				t.Fatalf("%s is known by hearsay", id)
			}
		}
	})
}
