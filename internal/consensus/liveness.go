package consensus

import (
	"maps"
	"slices"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// Servers is what a server knows of the others, by their beats and by whatever else they send. Like a Core it is pure: events in,
// decisions out. It finds out who is silent, asks others whether they hear them, once per pair of servers and not per group,
// sees by the beats' incarnations who has started anew, and by their counts and hashes whether the two ends of a pair agree about
// which groups are quiet. It only detects failures: no safety rests on it.
type Servers struct {
	cfg   ServersConfig
	known map[ident.ServerID]*server
	out   ServerDecisions
}

// ServersConfig says how Servers works.
type ServersConfig struct {
	Self ident.ServerID
	// HeartbeatTicks is how many ticks lie between two beats, SilentTicks after how many without word a server is silent.
	HeartbeatTicks, SilentTicks int
}

// ServerDecisions is what Servers wants done.
type ServerDecisions struct {
	Messages []ServerOutgoing
	// News are for every Core of this server, in order.
	News []ServerNews
	// Lists are asked for by other servers: Servers.SendList takes what the Cores' QuietGroups return.
	Lists []ListRequest
	// Compare are lists of others, for every Core's CompareQuiet.
	Compare []QuietList
}

// ServerOutgoing is a message to another server.
type ServerOutgoing struct {
	To      ident.ServerID
	Message *nyalav1.ServerMessage
}

// ServerNews is how things stand with another server.
type ServerNews struct {
	Server ident.ServerID
	// Heard: it isn't silent. Beats: its beats are heard, so that groups that it leads, or follows in, may be quiet.
	Heard, Beats bool
	// Restarted: it isn't the process any more that it was.
	Restarted bool
	// Deaf are servers that don't hear it either, while it is silent. The map is shared, and not changed any more.
	Deaf map[ident.ServerID]bool
}

// Question is a Core's wish to know whether To hears About.
type Question struct{ About, To ident.ServerID }

// ListRequest asks for the groups that this server leads in quiet with followers on From.
type ListRequest struct {
	From    ident.ServerID
	Request uint64
}

// QuietList are the groups that From says it leads in quiet with followers here.
type QuietList struct {
	From   ident.ServerID
	Groups []*nyalav1.QuietGroup
}

// QuietSum is a count and a hash of groups that one server leads in quiet with followers on another.
type QuietSum struct {
	Count, Hash uint64
	// Changes rises with each change; of the own side only.
	Changes uint64
}

func (s QuietSum) same(o QuietSum) bool { return s.Count == o.Count && s.Hash == o.Hash }

// server is one of the others.
type server struct {
	incarnation uint64 // 0: no beat was heard so far
	heard       bool
	beats       bool
	ago         int // ticks since the last word

	// deaf are servers that say that they don't hear this one, by the ticks since they said so.
	deaf map[ident.ServerID]int
	// asked are those that are asked; askAge counts ticks since they were.
	asked  map[ident.ServerID]bool
	askAge int

	// theirs and ours are the sums that differ, and age the ticks since they were seen first.
	differ       bool
	age          int
	theirs, ours QuietSum
	// request is the number of the last list asked for; while one is awaited, wait counts down the ticks.
	request uint64
	wait    int
	parts   uint32
	groups  []*nyalav1.QuietGroup
}

const (
	// listPart is how many groups a message holds, listMax how many a list may name.
	listPart = 512
	listMax  = 1 << 20
	// listIntervals is for how many heartbeat intervals a list is awaited before it is asked for again.
	listIntervals = 4
	// maxServers bounds the servers that are remembered; no cluster is that large.
	maxServers = 4096
)

// NewServers returns one that knows nobody.
func NewServers(cfg ServersConfig) *Servers {
	return &Servers{cfg: cfg, known: make(map[ident.ServerID]*server)}
}

// Take returns what is to be done.
func (s *Servers) Take() ServerDecisions {
	out := s.out
	s.out = ServerDecisions{}
	return out
}

// Tick moves time on by one tick.
func (s *Servers) Tick() {
	for _, id := range slices.Sorted(maps.Keys(s.known)) {
		p := s.known[id]
		p.ago++
		p.age++
		p.wait = max(p.wait-1, 0)
		if p.heard {
			for of := range p.deaf {
				if p.deaf[of]++; p.deaf[of] >= s.cfg.SilentTicks {
					delete(p.deaf, of) // it may hear it again
				}
			}
			if p.ago >= s.cfg.SilentTicks {
				p.heard, p.beats, p.differ, p.askAge = false, false, false, 0
				s.tell(id, p, false)
			}
			continue
		}
		if p.askAge++; p.askAge >= s.cfg.HeartbeatTicks {
			p.askAge = 0
			s.askAgain(id, p)
		}
	}
}

// Heard says that something came from a server.
func (s *Servers) Heard(from ident.ServerID) {
	if p := s.server(from); p != nil {
		p.ago = 0
		if !p.heard {
			s.back(from, p, false)
		}
	}
}

// HearBeat takes a server's beat: its incarnation and the sum of its quiet groups that are followed here, and ours of the same.
func (s *Servers) HearBeat(from ident.ServerID, incarnation uint64, theirs, ours QuietSum) {
	p := s.server(from)
	if p == nil || incarnation < p.incarnation {
		return // the last word of a process that is gone
	}
	p.ago = 0
	if incarnation == 0 { // of a version that has no quiet groups
		if !p.heard {
			s.back(from, p, false)
		}
		return
	}
	restarted := p.incarnation != 0 && p.incarnation != incarnation
	p.incarnation = incarnation
	if restarted || !p.heard || !p.beats {
		p.beats, p.differ = true, false
		s.back(from, p, restarted)
		return // what is quiet changes by it
	}
	s.compare(from, p, theirs, ours)
}

// compare looks whether both ends have the same groups quiet. Handshakes under way make them differ now and then; what differs
// in two beats that are about an interval apart, with nothing changed at either end, is a difference that stays.
func (s *Servers) compare(from ident.ServerID, p *server, theirs, ours QuietSum) {
	if theirs.same(ours) {
		p.differ = false
		return
	}
	if !p.differ || !p.theirs.same(theirs) || p.ours != ours {
		p.differ, p.age, p.theirs, p.ours = true, 0, theirs, ours
		return
	}
	if p.age >= max(s.cfg.HeartbeatTicks-1, 1) && p.wait == 0 {
		p.request++
		p.wait, p.parts, p.groups = listIntervals*s.cfg.HeartbeatTicks, 0, nil
		s.send(from, &nyalav1.ServerMessage{Kind: &nyalav1.ServerMessage_ListRequest{ListRequest: &nyalav1.QuietListRequest{Request: p.request}}})
	}
}

// Ask asks a server whether it hears another that is silent here, unless it has been asked.
func (s *Servers) Ask(q Question) {
	p := s.known[q.About]
	if p == nil || p.heard || p.asked[q.To] || q.To == s.cfg.Self || q.To == q.About {
		return
	}
	if p.asked == nil {
		p.asked = make(map[ident.ServerID]bool)
	}
	p.asked[q.To] = true
	s.sendQuestion(q)
}

func (s *Servers) sendQuestion(q Question) {
	s.send(q.To, &nyalav1.ServerMessage{Kind: &nyalav1.ServerMessage_Question{Question: &nyalav1.SilenceQuestion{ServerId: string(q.About)}}})
}

// askAgain asks those again that have not said that they are deaf: a message may be lost, and they may be by now.
func (s *Servers) askAgain(about ident.ServerID, p *server) {
	for _, to := range slices.Sorted(maps.Keys(p.asked)) {
		if _, deaf := p.deaf[to]; deaf {
			continue
		}
		if t := s.known[to]; t != nil && t.heard {
			s.sendQuestion(Question{about, to})
		}
	}
}

// Receive takes another server's message. What makes no sense is left alone.
func (s *Servers) Receive(from ident.ServerID, m *nyalav1.ServerMessage) {
	switch k := m.GetKind().(type) {
	case *nyalav1.ServerMessage_Question:
		about := ident.ServerID(k.Question.GetServerId())
		s.isDeaf(about, from) // who asks doesn't hear it
		p := s.known[about]
		hears := about == s.cfg.Self || p != nil && p.heard
		s.send(from, &nyalav1.ServerMessage{Kind: &nyalav1.ServerMessage_Answer{Answer: &nyalav1.SilenceAnswer{ServerId: string(about), Hears: hears}}})
	case *nyalav1.ServerMessage_Answer:
		if !k.Answer.GetHears() {
			s.isDeaf(ident.ServerID(k.Answer.GetServerId()), from)
		}
	case *nyalav1.ServerMessage_ListRequest:
		s.out.Lists = append(s.out.Lists, ListRequest{from, k.ListRequest.GetRequest()})
	case *nyalav1.ServerMessage_List:
		s.receiveList(from, k.List)
	}
}

// isDeaf notes that a server says that it doesn't hear another.
func (s *Servers) isDeaf(about, who ident.ServerID) {
	p := s.known[about]
	if p == nil || s.known[who] == nil {
		return
	}
	_, before := p.deaf[who]
	if p.deaf == nil {
		p.deaf = make(map[ident.ServerID]int)
	}
	p.deaf[who] = 0
	if !before && !p.heard {
		s.tell(about, p, false)
	}
}

// SendList answers a ListRequest, in parts.
func (s *Servers) SendList(r ListRequest, groups []*nyalav1.QuietGroup) {
	for part := uint32(0); ; part++ {
		n := min(len(groups), listPart)
		s.send(r.From, &nyalav1.ServerMessage{Kind: &nyalav1.ServerMessage_List{List: &nyalav1.QuietList{
			Request: r.Request, Part: part, Last: n == len(groups), Groups: groups[:n],
		}}})
		if groups = groups[n:]; len(groups) == 0 {
			return
		}
	}
}

// receiveList takes a part of a list that was asked for. A list with a part missing is dropped: the difference brings the next.
func (s *Servers) receiveList(from ident.ServerID, l *nyalav1.QuietList) {
	p := s.known[from]
	if p == nil || p.wait == 0 || l.GetRequest() != p.request || l.GetPart() != p.parts || len(p.groups)+len(l.GetGroups()) > listMax {
		return
	}
	p.parts++
	for _, g := range l.GetGroups() {
		if len(g.GetTabletId()) == 16 {
			p.groups = append(p.groups, g)
		}
	}
	if l.GetLast() {
		s.out.Compare = append(s.out.Compare, QuietList{from, p.groups})
		p.wait, p.groups, p.differ = 0, nil, false
	}
}

// back says that a server is heard, again or for the first time or as another process.
func (s *Servers) back(id ident.ServerID, p *server, restarted bool) {
	p.heard = true
	p.deaf, p.asked = nil, nil
	s.tell(id, p, restarted)
}

func (s *Servers) tell(id ident.ServerID, p *server, restarted bool) {
	n := ServerNews{Server: id, Heard: p.heard, Beats: p.beats, Restarted: restarted}
	if !p.heard {
		n.Deaf = make(map[ident.ServerID]bool, len(p.deaf))
		for d := range p.deaf {
			n.Deaf[d] = true
		}
	}
	s.out.News = append(s.out.News, n)
}

func (s *Servers) send(to ident.ServerID, m *nyalav1.ServerMessage) {
	s.out.Messages = append(s.out.Messages, ServerOutgoing{to, m})
}

// server returns what is known of a server, made if it is new; nil: this one, or too many are known.
func (s *Servers) server(id ident.ServerID) *server {
	p := s.known[id]
	if p == nil && id != s.cfg.Self && len(s.known) < maxServers {
		p = &server{}
		s.known[id] = p
	}
	return p
}
