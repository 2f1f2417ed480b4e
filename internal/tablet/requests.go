package tablet

import (
	"math"
	"sort"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

// requestTable remembers, for one tablet, which requests of which clients were applied: the part of exactly-once that
// decides. It is driven by applied operations alone, in log order, so it is the same on every replica; each change that
// it makes is handed to a sink, which puts it in the batch that applies the operation.
//
// The rules, in the order in which an operation meets them:
//
//   - TTL. Answers older than the operation's timestamp by responsesTTL are forgotten, clients not heard of for clientsTTL
//     as well: oldest first, a bounded number per operation, so that a long pause doesn't stall the next write.
//   - A client has a stale bound: the first request sets it to its first-incomplete number. A lower number is stale and never
//     executed.
//   - A number that is remembered gets its first answer again.
//   - The first-incomplete number raises the bound. What lies below it is forgotten: at once as far as anyone can tell, since
//     the bound is asked first; its records go a bounded number at a time.
//   - A request that was executed is remembered. Above maxRecords the oldest answer of the tablet is forgotten, above
//     maxClients the client that was silent longest.
//
// An answer that is forgotten raises its client's bound past it: sent again it is stale, not executed twice. Only with the
// client itself does that knowledge go.
type requestTable struct {
	limits  requestLimits
	clients map[ClientID]*client
	// byAge and bySilence are lists from the oldest answer and from the client that was silent longest.
	byAge     list[request]
	bySilence list[client]
	records   int
}

// requestLimits must be the same on every replica: they take part in what is applied. So leaders write the TTLs that their
// flags name into each operation, and the two bounds have no flags.
type requestLimits struct {
	responsesTTL time.Duration
	clientsTTL   time.Duration
	maxRecords   int
	maxClients   int
}

// saidBy returns the limits with the TTLs that stand in an operation, its leader's, where it names any.
func (l requestLimits) saidBy(op *nyalav1.WriteOp) requestLimits {
	if usec := op.GetRememberResponsesUsec(); usec != 0 {
		l.responsesTTL = microseconds(usec)
	}
	if usec := op.GetRememberClientsUsec(); usec != 0 {
		l.clientsTTL = microseconds(usec)
	}
	return l
}

func microseconds(usec uint64) time.Duration {
	return time.Duration(min(usec, uint64(math.MaxInt64/time.Microsecond))) * time.Microsecond
}

// forgetPerOp bounds the records that one operation removes. It is above the one that an operation adds, so that removal
// catches up.
const forgetPerOp = 32

type client struct {
	links[client]
	id ClientID
	clientRecord
	requests []*request // by sequence number
}

type request struct {
	links[request]
	client    *client
	seq       uint64
	timestamp hybridtime.Timestamp
	hasErrors bool
}

// requestSink takes the table's changes.
type requestSink interface {
	putClient(id ClientID, c clientRecord)
	deleteClient(id ClientID)
	deleteRequest(id ClientID, seq uint64, why forgetReason)
}

// forgetReason labels the metric.
type forgetReason int

const (
	forgetCompleted forgetReason = iota // below the client's first-incomplete number
	forgetExpired
	forgetLimit
	numForgetReasons
)

func (r forgetReason) String() string { return [...]string{"completed", "expired", "limit"}[r] }

type verdict int

const (
	verdictNew verdict = iota
	verdictDone
	verdictStale
)

func newRequestTable(limits requestLimits) *requestTable {
	return &requestTable{limits: limits, clients: map[ClientID]*client{}}
}

// find says what is known of a request, and changes nothing.
func (t *requestTable) find(id ClientID, seq uint64) (verdict, *request) {
	c := t.clients[id]
	switch {
	case c == nil:
		return verdictNew, nil
	case seq < c.bound:
		return verdictStale, nil
	}
	if i, ok := c.search(seq); ok {
		return verdictDone, c.requests[i]
	}
	return verdictNew, nil
}

// expire applies the TTL rule at the timestamp of an operation.
func (t *requestTable) expire(now hybridtime.Timestamp, limits requestLimits, sink requestSink) {
	for range forgetPerOp {
		if r := t.byAge.first; r != nil && r.timestamp.Add(limits.responsesTTL) < now {
			t.forget(r, forgetExpired, sink)
			continue
		}
		c := t.bySilence.first
		if c == nil || c.lastActive.Add(limits.clientsTTL) >= now {
			return
		}
		t.forgetClient(c, sink)
	}
}

// begin takes note of a request at the timestamp of the operation that carries it, and says what is to be done with it.
func (t *requestTable) begin(id ClientID, seq, firstIncomplete uint64, now hybridtime.Timestamp, sink requestSink) (verdict, *request) {
	// A first-incomplete number above the request's own says no more than its own: the request itself isn't complete.
	firstIncomplete = min(firstIncomplete, seq)
	v, r := t.find(id, seq)
	c := t.clients[id]
	if c == nil {
		c = &client{id: id, clientRecord: clientRecord{bound: firstIncomplete}}
		t.clients[id] = c
	} else {
		t.bySilence.remove(c)
	}
	c.lastActive = now
	t.bySilence.append(c)
	c.bound = max(c.bound, firstIncomplete)
	for range forgetPerOp {
		if len(c.requests) == 0 || c.requests[0].seq >= c.bound {
			break
		}
		t.forget(c.requests[0], forgetCompleted, sink)
	}
	sink.putClient(id, c.clientRecord)
	if len(t.clients) > t.limits.maxClients {
		t.evictClient(sink)
	}
	return v, r
}

// remember notes the answer to a request that begin said is new.
func (t *requestTable) remember(id ClientID, seq uint64, ts hybridtime.Timestamp, hasErrors bool, sink requestSink) {
	c := t.clients[id]
	t.insert(c, &request{client: c, seq: seq, timestamp: ts, hasErrors: hasErrors})
	for range forgetPerOp {
		if t.records <= t.limits.maxRecords {
			return
		}
		t.forget(t.byAge.first, forgetLimit, sink)
	}
}

// insert puts in a request that is younger than all others.
func (t *requestTable) insert(c *client, r *request) {
	i, _ := c.search(r.seq)
	c.requests = append(c.requests, nil)
	copy(c.requests[i+1:], c.requests[i:])
	c.requests[i] = r
	t.byAge.append(r)
	t.records++
}

// forget removes an answer. Its client's bound rises past it, unless it was there already.
func (t *requestTable) forget(r *request, why forgetReason, sink requestSink) {
	c := r.client
	i, _ := c.search(r.seq)
	copy(c.requests[i:], c.requests[i+1:])
	c.requests[len(c.requests)-1] = nil
	c.requests = c.requests[:len(c.requests)-1]
	t.byAge.remove(r)
	t.records--
	sink.deleteRequest(c.id, r.seq, why)
	if c.bound <= r.seq {
		c.bound = r.seq + 1
		sink.putClient(c.id, c.clientRecord)
	}
}

// forgetClient removes a client, or where it has answers left the oldest numbers of them first.
func (t *requestTable) forgetClient(c *client, sink requestSink) {
	if len(c.requests) > 0 {
		t.forget(c.requests[0], forgetExpired, sink)
		return
	}
	t.bySilence.remove(c)
	delete(t.clients, c.id)
	sink.deleteClient(c.id)
}

// evictClient makes room for a client. One with many answers takes several operations; the limit is exceeded meanwhile.
func (t *requestTable) evictClient(sink requestSink) {
	c := t.bySilence.first
	for range forgetPerOp {
		if len(c.requests) == 0 {
			t.forgetClient(c, sink)
			return
		}
		t.forget(c.requests[0], forgetLimit, sink)
	}
}

// search returns the place of a sequence number, from the end, where new ones mostly go.
func (c *client) search(seq uint64) (int, bool) {
	n := len(c.requests)
	if n == 0 || c.requests[n-1].seq < seq {
		return n, false
	}
	i := sort.Search(n, func(i int) bool { return c.requests[i].seq >= seq })
	return i, c.requests[i].seq == seq
}

// restore fills the table with what stands on disk, in any order.
func (t *requestTable) restore(clients map[ClientID]clientRecord, requests []storedRequest) {
	for id, rec := range clients {
		t.clients[id] = &client{id: id, clientRecord: rec}
	}
	sort.Slice(requests, func(i, j int) bool { return requests[i].timestamp < requests[j].timestamp })
	for _, r := range requests {
		c := t.clients[r.id]
		t.insert(c, &request{client: c, seq: r.seq, timestamp: r.timestamp, hasErrors: r.hasErrors})
	}
	silent := make([]*client, 0, len(t.clients))
	for _, c := range t.clients {
		silent = append(silent, c)
	}
	sort.Slice(silent, func(i, j int) bool { return silent[i].lastActive < silent[j].lastActive })
	for _, c := range silent {
		t.bySilence.append(c)
	}
}

// storedRequest is a request record as restore takes it.
type storedRequest struct {
	id        ClientID
	seq       uint64
	timestamp hybridtime.Timestamp
	hasErrors bool
}
