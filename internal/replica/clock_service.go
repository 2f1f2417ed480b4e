package replica

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/peer"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/clock"
	"github.com/nyaladb/nyala/internal/status"
)

// GetClock says what there is to know of this server's clock, and of the others' as seen from here.
func (s *serverService) GetClock(context.Context, *nyalav1.GetClockRequest) (*nyalav1.GetClockResponse, error) {
	st := s.n.Clock.Status()
	resp := &nyalav1.GetClockResponse{
		State: st.State.String(), Reason: st.Reason, Verdict: st.Verdict.String(), Detection: st.Detection, Source: st.Source,
		Extrapolating: st.Extrapolating, MaxErrorUsec: st.MaxError.Microseconds(), DisplacedUsec: st.Displaced.Microseconds(),
		WallMinusMonotonicUsec: st.WallMinusMono.Microseconds(),
		Latest:                 uint64(st.Latest), Now: uint64(st.Now), Mark: uint64(st.Mark), Promise: uint64(st.Promise),
		Opinion: opinionText(st.Opinion),
		Peers:   clockPeers(s.n.beater.servers(), st.Peers),

		MaxClockSyncErrorUsec: s.n.cfg.Clock.MaxClockSyncError.Microseconds(), Mock: s.n.mock != nil,
	}
	return resp, nil
}

// clockPeers is a row for each other server: one that wasn't heard of late is there, as not known.
func clockPeers(servers []Server, heard []clock.PeerOffset) []*nyalav1.ClockPeer {
	rows := make([]*nyalav1.ClockPeer, 0, len(servers))
	for _, s := range servers {
		row := &nyalav1.ClockPeer{ServerId: string(s.ID)}
		for _, p := range heard {
			if p.Peer == s.ID {
				row.Known = true
				row.OffsetUsec, row.BoundUsec = -p.Ahead.Microseconds(), p.Bound.Microseconds()
				row.AgeMs, row.Verdict, row.State = uint64(max(p.Age, 0).Milliseconds()), p.Verdict.String(), p.State.String()
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func opinionText(o clock.Opinion) string {
	if o.Others == 0 {
		return "there is no other server"
	}
	text := fmt.Sprintf("of %d other servers %d were heard, %d agree, %d disagree", o.Others, o.Heard, o.Right, o.Off)
	if o.Blame {
		text += fmt.Sprintf(": this clock is off by about %v", o.Ahead)
	}
	return text
}

// AcceptClock opens the fence by an operator's word.
func (s *serverService) AcceptClock(ctx context.Context, req *nyalav1.AcceptClockRequest) (*nyalav1.AcceptClockResponse, error) {
	before := s.n.Clock.Status()
	s.n.cfg.Logger.Warn("the wall clock is accepted as it is, by an operator's word", "from", caller(ctx), "reason", req.GetReason(),
		"state", before.State.String(), "why", before.Reason, "displaced", before.Displaced)
	s.n.Clock.Accept()
	return &nyalav1.AcceptClockResponse{}, nil
}

// MockClock sets the faults in force, where the server was started with --time_source=mock.
func (s *serverService) MockClock(ctx context.Context, req *nyalav1.MockClockRequest) (*nyalav1.MockClockResponse, error) {
	if s.n.mock == nil {
		return nil, status.New(status.IllegalState,
			"this server reads the machine's own clock: only one started with --time_source=mock --unlock_unsafe_flags takes made-up faults")
	}
	f := clock.Faults{
		Offset: time.Duration(req.GetOffset()), Suspended: time.Duration(req.GetSuspended()), LeaptAll: time.Duration(req.GetLeaptAll()),
		MaxError: time.Duration(req.GetMaxError()), Unsynced: req.GetUnsynced(),
	}
	s.n.cfg.Logger.Warn("mock clock changed", "from", caller(ctx), "offset", f.Offset, "suspended", f.Suspended, "leapt_all", f.LeaptAll,
		"max_error", f.MaxError, "unsynced", f.Unsynced)
	s.n.mock.Change(func(now *clock.Faults) { *now = f })
	return &nyalav1.MockClockResponse{}, nil
}

// caller is who made a call, for the log.
func caller(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return "this process"
}

// ClockTrouble says why the clock gives no timestamps out ("fenced: …"); empty: it does.
func (n *Node) ClockTrouble() string {
	return strings.TrimPrefix(n.Clock.Status().Reason, "clock ")
}
