package client

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

const (
	// lookupTablets is how many tablets a question to the master asks for: the one wanted and its neighbours.
	lookupTablets = 1000
	// defaultLocationTTL stands in where the master names no time.
	defaultLocationTTL = 5 * time.Minute
	// refreshTablets is how many a refresh asks for.
	refreshTablets = 100
	// refreshGap is the least time between two refreshes of a table's locations that nobody waits for: in an election the
	// tablet's own servers know sooner than the master who leads, and should not be the reason to ask it over and over.
	refreshGap = 100 * time.Millisecond
)

// locations is what the client knows about where one table's tablets are, by partition key. Finding a tablet takes no lock:
// the rows of a load come through here one by one.
type locations struct {
	c         *Client
	tableID   string
	tableName string
	schema    *schema.Schema // at some version: key columns are the same in all
	lookups   flight[lookupAnswer]
	known     atomic.Pointer[keyMap]

	mu        sync.Mutex // guards replacing known
	deleted   *Error     // the master says that there is no such table
	refreshed time.Time
}

// keyMap is what is known at one moment; it is never changed.
type keyMap struct {
	tablets []*tablet // ordered by start, disjoint
	spans   []keySpan // where tablets has all there are, until they expire
	// partition, of the given version, says which tablets rows belong to. It is never older than any of the tablets.
	partition *schema.PartitionSchema
	version   uint64
}

// find returns the tablet that holds a partition key if it is known.
func (m *keyMap) find(key []byte) *tablet {
	if i := m.firstAfter(key); i > 0 && m.tablets[i-1].contains(key) {
		return m.tablets[i-1]
	}
	return nil
}

// firstAfter is the position of the first tablet that starts after a key.
func (m *keyMap) firstAfter(key []byte) int {
	return sort.Search(len(m.tablets), func(i int) bool { return bytes.Compare(m.tablets[i].start, key) > 0 })
}

// next returns the first tablet that reaches beyond a partition key, nil if there is none; false: it isn't known. That there is
// none before a key (nil: the end) is known only as far as empty says that there is nothing to be found, or if it was learned
// after the given moment.
func (m *keyMap) next(key []byte, since time.Time, empty func(m *keyMap, from, to []byte) bool) (*tablet, bool) {
	if t := m.find(key); t != nil {
		return t, true
	}
	i := m.firstAfter(key)
	for _, s := range m.spans {
		if !s.contains(key) || time.Now().After(s.expires) {
			continue
		}
		var next *tablet
		var end []byte
		switch {
		case i < len(m.tablets) && s.contains(m.tablets[i].start):
			next, end = m.tablets[i], m.tablets[i].start
		case !s.toTheEnd:
			continue
		}
		if !s.asked.Before(since) || empty(m, key, end) {
			return next, true
		}
	}
	return nil, false
}

// lookupAnswer is the master's answer to one question.
type lookupAnswer struct {
	from    []byte
	span    keySpan // where tablets has all there are
	tablets []*tablet
}

// next returns the first tablet that reaches beyond a key, nil if there is none.
func (a *lookupAnswer) next(key []byte) *tablet {
	i := slices.IndexFunc(a.tablets, func(t *tablet) bool { return t.endsAfter(key) })
	if i < 0 {
		return nil
	}
	return a.tablets[i]
}

// locationsOf returns the cache of a table, shared by all that opened it, with its partition schema if that is news.
func (c *Client) locationsOf(t *Table, version uint64) *locations {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.locations[t.info.ID]
	if l == nil {
		l = &locations{c: c, tableID: t.info.ID, tableName: t.info.Name, schema: t.schema}
		l.known.Store(&keyMap{partition: t.partition, version: version})
		c.locations[t.info.ID] = l
		return l
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Tablets keep their identity: writes to them may be waiting.
	m := &keyMap{tablets: l.known.Load().tablets, partition: t.partition, version: version}
	if old := l.known.Load(); old.version > version {
		m.partition, m.version = old.partition, old.version
	}
	l.known.Store(m)
	return l
}

func (c *Client) forgetTable(tableID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.locations, tableID)
}

// locate returns the tablet that holds a partition key, nil if there is none, and asks the master if it must. That there is none is
// never taken from memory: a range may have been added.
func (l *locations) locate(ctx context.Context, key []byte) (*tablet, error) {
	t, err := l.resolve(ctx, key, time.Now(), func(m *keyMap) (*tablet, bool) {
		t := m.find(key)
		return t, t != nil
	})
	if err != nil || t == nil || !t.contains(key) {
		return nil, err
	}
	return t, nil
}

// seek returns the first tablet that reaches beyond a partition key, nil if there is none. That there is none before some key is
// asked anew where that was learned before the given moment, but where empty says that it makes no difference.
func (l *locations) seek(ctx context.Context, key []byte, since time.Time, empty func(m *keyMap, from, to []byte) bool) (*tablet, error) {
	return l.resolve(ctx, key, since, func(m *keyMap) (*tablet, bool) { return m.next(key, since, empty) })
}

// resolve looks for the first tablet that reaches beyond a key in memory, and where that doesn't tell asks the master. An answer to
// a question from before the given moment doesn't tell that a key is in no tablet.
func (l *locations) resolve(ctx context.Context, key []byte, since time.Time, memory func(*keyMap) (*tablet, bool)) (*tablet, error) {
	if t, ok := memory(l.known.Load()); ok {
		return t, nil
	}
	ctx, cancel := withTimeout(ctx, l.c.opts.Timeout)
	defer cancel()
	r := l.c.newRetry()
	for {
		var found *tablet
		question := l.lookup(key, func() (ok bool) {
			found, ok = memory(l.known.Load())
			return ok
		})
		if question == nil { // the answer to another's has come since
			return found, nil
		}
		answer, err := question.wait(ctx)
		switch {
		case err == nil && answer.span.contains(key):
			t := answer.next(key)
			if answer.span.asked.Before(since) && (t == nil || !t.contains(key)) {
				continue
			}
			return t, nil
		case err == nil && !bytes.Equal(answer.from, key): // the answer was to another question
			continue
		case err == nil:
			r.blocked(status.New(status.ServiceUnavailable, "the master named no tablet and said there are more"))
		case ctx.Err() == nil && !retriableSearch(err):
			return nil, err
		case ctx.Err() == nil:
			r.blocked(err)
		}
		if perr := r.pause(ctx, l.c.opts.MaxBackoff); perr != nil {
			return nil, r.failure(ctx, fmt.Sprintf("locate a tablet of table %q", l.tableName))
		}
	}
}

// lookup asks the master for the tablets from a partition key on, joins the question that is under way, or returns nil where none
// is and told, unless nil, says that memory tells by now. The first question for a table is for the tablets from the beginning on,
// which mostly are all there are.
func (l *locations) lookup(key []byte, told func() bool) *run[lookupAnswer] {
	if len(l.known.Load().tablets) == 0 {
		key = nil
	}
	return l.question(bytes.Clone(key), lookupTablets, told)
}

func (l *locations) question(key []byte, most int, told func() bool) *run[lookupAnswer] {
	return l.lookups.start(l.c, l.c.opts.AttemptTimeout, told, func(ctx context.Context) (lookupAnswer, error) {
		asked := time.Now()
		answer, err := l.ask(ctx, key, most)
		if err != nil {
			if status.CodeOf(err) == status.TableNotFound {
				l.markDeleted(err)
			}
			return lookupAnswer{}, err
		}
		return l.merge(key, asked, answer)
	})
}

func (l *locations) ask(ctx context.Context, key []byte, most int) (*nyalav1.GetTableLocationsResponse, error) {
	var answer *nyalav1.GetTableLocationsResponse
	what := fmt.Sprintf("locate the tablets of table %q", l.tableName)
	err := l.c.callMaster(ctx, what, func(ctx context.Context, m nyalav1.MasterServiceClient, _ bool) (err error) {
		answer, err = m.GetTableLocations(ctx, &nyalav1.GetTableLocationsRequest{
			Table: &nyalav1.TableIdentifier{Id: l.tableID}, PartitionKeyStart: key, MaxTablets: uint32(most),
			PartitionVersion: l.known.Load().version,
		})
		return err
	})
	return answer, err
}

// refresh asks for a tablet's locations again. Nobody waits: those that try the tablet see what has come when they try again.
func (l *locations) refresh(t *tablet) {
	l.mu.Lock()
	due := time.Since(l.refreshed) >= refreshGap
	if due {
		l.refreshed = time.Now()
	}
	l.mu.Unlock()
	if due {
		l.question(t.start, refreshTablets, nil)
	}
}

func (l *locations) markDeleted(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deleted = status.Wrap(status.TableNotFound, err, "table %q", l.tableName)
}

// fate says why a tablet isn't there any more; nil as long as it is.
func (l *locations) fate(t *tablet) *Error {
	l.mu.Lock()
	deleted := l.deleted
	l.mu.Unlock()
	if deleted != nil {
		return deleted
	}
	if t.isGone() {
		return status.New(status.TabletNotFound, "tablet %s of table %q no longer exists", t.id, l.tableName)
	}
	return nil
}

// merge takes over an answer to the question for the tablets from a key on. Tablets known before keep their identity; those
// that the answer should have held but didn't are gone.
func (l *locations) merge(from []byte, asked time.Time, answer *nyalav1.GetTableLocationsResponse) (lookupAnswer, error) {
	ttl := time.Duration(answer.GetTtlMs()) * time.Millisecond
	if ttl == 0 {
		ttl = defaultLocationTTL
	}
	expires := time.Now().Add(ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.known.Load()
	next := &keyMap{partition: old.partition, version: old.version}
	if p := answer.GetPartitionSchema(); p != nil && answer.GetPartitionVersion() > old.version {
		next.partition, next.version = schema.PartitionSchemaFromProto(p), answer.GetPartitionVersion()
		if err := next.partition.Validate(l.schema); err != nil {
			return lookupAnswer{}, status.Wrap(status.Corruption, err, "the master's partition schema of table %q", l.tableName)
		}
	}
	byID := make(map[string]*tablet, len(old.tablets))
	for _, t := range old.tablets {
		byID[t.id] = t
	}
	fresh := make([]*tablet, 0, len(answer.GetTablets()))
	for _, p := range answer.GetTablets() {
		t := byID[p.GetTabletId()]
		if t == nil {
			t = &tablet{
				id: p.GetTabletId(), start: p.GetPartition().GetPartitionKeyStart(),
				end: p.GetPartition().GetPartitionKeyEnd(), hash: p.GetPartition().GetHashBuckets(),
			}
		}
		t.update(p.GetReplicas(), expires)
		fresh = append(fresh, t)
		delete(byID, t.id)
	}
	slices.SortFunc(fresh, func(a, b *tablet) int { return bytes.Compare(a.start, b.start) })
	span := answeredSpan(from, fresh, answer.GetHasMore())
	span.expires, span.asked = expires, asked
	all, spans := slices.Clone(fresh), old.spans
	for _, t := range byID {
		if span.overlaps(t) {
			t.vanish()
			spans = nil // what takes its place may reach beyond this answer
			continue
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *tablet) int { return bytes.Compare(a.start, b.start) })
	next.tablets, next.spans = all, addSpan(spans, span)
	l.known.Store(next)
	return lookupAnswer{from: from, span: span, tablets: fresh}, nil
}

// keySpan is the partition keys from start to end, without end where there is none.
type keySpan struct {
	start, end []byte
	toTheEnd   bool
	expires    time.Time
	asked      time.Time // when the question was put
}

func (s keySpan) contains(key []byte) bool {
	return bytes.Compare(s.start, key) <= 0 && (s.toTheEnd || bytes.Compare(key, s.end) < 0)
}

// maxSpans bounds the spans that are remembered: the newest ones.
const maxSpans = 64

// addSpan returns the spans with a new one before them, without those that it covers.
func addSpan(spans []keySpan, s keySpan) []keySpan {
	out := []keySpan{s}
	for _, old := range spans {
		covered := bytes.Compare(s.start, old.start) <= 0 && (s.toTheEnd || (!old.toTheEnd && bytes.Compare(old.end, s.end) <= 0))
		if !covered && len(out) < maxSpans {
			out = append(out, old)
		}
	}
	return out
}

// answeredSpan is the keys for which an answer named every tablet.
func answeredSpan(from []byte, tablets []*tablet, more bool) keySpan {
	s := keySpan{start: from}
	if len(tablets) == 0 {
		s.toTheEnd = !more
		s.end = from
		return s
	}
	if first := tablets[0]; bytes.Compare(first.start, from) < 0 {
		s.start = first.start
	}
	s.end = tablets[len(tablets)-1].end
	s.toTheEnd = !more || len(s.end) == 0
	return s
}

func (s keySpan) overlaps(t *tablet) bool {
	return t.endsAfter(s.start) && (s.toTheEnd || bytes.Compare(t.start, s.end) < 0)
}

// Tablet is one tablet of a table and where its replicas are, as the master says.
type Tablet struct {
	ID string
	// HashBuckets has the tablet's bucket of each hash dimension.
	HashBuckets []uint32
	// PartitionKeyStart (inclusive) and PartitionKeyEnd (exclusive, empty: no bound) are its share of the partition keys.
	PartitionKeyStart, PartitionKeyEnd []byte
	Replicas                           []Replica
}

// Replica is one replica of a tablet.
type Replica struct {
	ID       uint64
	ServerID string
	Address  string
	Role     Role
}

// Role is what a replica is in its tablet's Raft group.
type Role = nyalav1.Role

// The roles of replicas.
const (
	RoleLeader   = nyalav1.Role_ROLE_LEADER
	RoleFollower = nyalav1.Role_ROLE_FOLLOWER
	RoleLearner  = nyalav1.Role_ROLE_LEARNER
)

// Leader returns the replica that leads, false if the master knows of none.
func (t *Tablet) Leader() (Replica, bool) {
	i := slices.IndexFunc(t.Replicas, func(r Replica) bool { return r.Role == RoleLeader })
	if i < 0 {
		return Replica{}, false
	}
	return t.Replicas[i], true
}

// Tablets asks the master for all tablets of a table, in the order of their partition keys.
func (c *Client) Tablets(ctx context.Context, table *Table) ([]Tablet, error) {
	var tablets []Tablet
	var from []byte
	for {
		answer, err := table.locations.ask(ctx, from, lookupTablets)
		if err != nil {
			return nil, err
		}
		page := answer.GetTablets()
		for _, p := range page {
			t := Tablet{
				ID: p.GetTabletId(), HashBuckets: p.GetPartition().GetHashBuckets(),
				PartitionKeyStart: p.GetPartition().GetPartitionKeyStart(),
				PartitionKeyEnd:   p.GetPartition().GetPartitionKeyEnd(),
			}
			for _, r := range p.GetReplicas() {
				t.Replicas = append(t.Replicas, Replica{
					ID: r.GetReplicaId(), ServerID: r.GetServerId(), Address: r.GetAddress(), Role: r.GetRole(),
				})
			}
			tablets = append(tablets, t)
		}
		if !answer.GetHasMore() || len(page) == 0 {
			return tablets, nil
		}
		if from = page[len(page)-1].GetPartition().GetPartitionKeyEnd(); len(from) == 0 {
			return tablets, nil
		}
	}
}
