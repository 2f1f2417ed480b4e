package consensus

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
)

// notifier calls the observer from a goroutine of its own. It holds at most one change and one failure per group: of
// changes that come fast the last one counts. What members need is said once per member and ten heartbeat intervals at most.
type notifier struct {
	observer Observer
	signal   chan struct{}

	mu    sync.Mutex
	order []ident.TabletID
	news  map[ident.TabletID]*news
}

type news struct {
	change  *GroupStatus
	err     error
	needs   []Need
	removed *Removal
}

func newNotifier(o Observer) *notifier {
	return &notifier{observer: o, signal: make(chan struct{}, 1), news: make(map[ident.TabletID]*news)}
}

func (n *notifier) put(tablet ident.TabletID, f func(*news)) {
	n.mu.Lock()
	w := n.news[tablet]
	if w == nil {
		w = &news{}
		n.news[tablet] = w
		n.order = append(n.order, tablet)
	}
	f(w)
	n.mu.Unlock()
	select {
	case n.signal <- struct{}{}:
	default:
	}
}

func (n *notifier) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.signal:
		}
		n.mu.Lock()
		order, all := n.order, n.news
		n.order, n.news = nil, make(map[ident.TabletID]*news)
		n.mu.Unlock()
		for _, tablet := range order {
			w := all[tablet]
			if w.change != nil {
				n.observer.LeadershipChanged(tablet, *w.change)
			}
			if w.err != nil {
				n.observer.ReplicaFailed(tablet, w.err)
			}
			for _, need := range w.needs {
				n.observer.NeedsCopy(tablet, need.Peer, need.Config)
			}
			if w.removed != nil {
				n.observer.ReplicaRemoved(tablet, w.removed.Replica)
			}
		}
	}
}

// refusalLog logs refused entries, at most one line a second and with the number of those left out.
type refusalLog struct {
	log *slog.Logger

	mu      sync.Mutex
	last    time.Time
	skipped int
}

func (l *refusalLog) put(r Refusal) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last) < time.Second {
		l.skipped++
		return
	}
	attrs := []any{
		slog.String("tablet_id", string(r.Tablet)), slog.Uint64("leader_replica", uint64(r.From)),
		slog.Uint64("refused_by_replica", uint64(r.By)), slog.Uint64("index", uint64(r.Index)), slog.String("timestamp", r.Timestamp.String()),
		slog.String("reading", r.Reading.String()), slog.Int("skipped", l.skipped),
	}
	if r.Here {
		l.log.Warn("refused a leader's entry: its timestamp is too far ahead of this server's clock", attrs...)
	} else {
		l.log.Warn("a follower refused an entry: its timestamp is too far ahead of the follower's clock", attrs...)
	}
	l.last, l.skipped = now, 0
}
