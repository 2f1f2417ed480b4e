package client

import (
	"context"
	"sync"
	"time"

	"github.com/nyaladb/nyala/internal/status"
)

// FlushMode says when a Session's operations go to the servers.
type FlushMode int

const (
	// SyncFlush writes each operation before Apply returns.
	SyncFlush FlushMode = iota
	// ManualFlush keeps operations until Flush.
	ManualFlush
	// BackgroundFlush keeps operations for a short while and sends them in the background. Apply waits while the buffer is full.
	// What becomes of the rows is learned from Flush, Close or PendingErrors.
	BackgroundFlush
)

// SessionOptions say how a Session writes. Fields left zero take the defaults named beside them.
type SessionOptions struct {
	Flush FlushMode
	// BatchRows and BatchBytes bound one request to one tablet; a single row may be larger. Default: 10,000 rows, 1 MiB.
	BatchRows, BatchBytes int
	// BufferBytes bounds what a session keeps: beyond it Apply returns ErrBufferFull with ManualFlush, and waits with
	// BackgroundFlush, which begins to send when half of it is full. Default: 64 MiB.
	BufferBytes int
	// FlushInterval is how long an operation lies at most before BackgroundFlush sends it. Default: 1 s.
	FlushInterval time.Duration
	// MaxErrors bounds the row errors that BackgroundFlush keeps until somebody takes them. Default: 10,000.
	MaxErrors int
	// MaxInFlight bounds how many tablets are written to at once. Default: 16.
	MaxInFlight int
	// CommitWait makes servers answer only when a write's timestamp is past on every clock.
	CommitWait bool
	// Via is the id of the tablet server that is asked to take the writes, whether it leads their tablets or not: an answer
	// comes when the rows can be read there. Tablets without a replica on it are written to as ever. Default: each tablet's
	// leader.
	Via string
}

func (o SessionOptions) withDefaults(c Options) SessionOptions {
	setDefault(&o.BatchRows, 10_000)
	setDefault(&o.BatchBytes, 1<<20)
	setDefault(&o.BufferBytes, 64<<20)
	setDefault(&o.MaxInFlight, 16)
	setDefault(&o.FlushInterval, time.Second)
	setDefault(&o.MaxErrors, 10_000)
	o.BatchBytes = min(o.BatchBytes, c.MaxMessageSize-requestOverhead)
	return o
}

// Session writes rows. It is safe for concurrent use. Operations on one key take effect in the order of Apply; between keys
// there is no order, and no atomicity beyond the single row.
//
// Each request is sent under a number of its own, again under the same number if its answer is lost, and applied once.
type Session struct {
	c    *Client
	opts SessionOptions

	flushing chan struct{} // holds a token while a flush is under way

	mu       sync.Mutex
	closed   bool
	applied  uint64                  // operations taken so far
	buffered int                     // bytes
	tables   map[*Table]*tableBuffer // those written to since the last flush
	order    []*tabletBuffer         // those with operations, in the order of their first
	free     map[*Table][]*batch
	lastTS   Timestamp
	bg       background
}

// NewSession returns a session. It holds nothing that needs closing unless operations are buffered.
func (c *Client) NewSession(o SessionOptions) *Session {
	return &Session{
		c: c, opts: o.withDefaults(c.opts), flushing: make(chan struct{}, 1),
		tables: make(map[*Table]*tableBuffer), free: make(map[*Table][]*batch),
	}
}

// LastTimestamp returns the highest timestamp of this session's writes; 0: none so far. A snapshot at the next timestamp
// (LastTimestamp()+1) holds them.
func (s *Session) LastTimestamp() Timestamp {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastTS
}

// Apply takes an operation. In SyncFlush it returns once the row is written, or with a *RowError. In ManualFlush and
// BackgroundFlush it checks the operation and keeps a copy; where the row belongs may be asked of the master. An operation with a fault that shows without the server (a missing key column, NULL where it can't be, a cell too large) is
// refused with an *Error and not taken.
func (s *Session) Apply(ctx context.Context, op *Operation) error {
	if op.table.c != s.c {
		return status.New(status.InvalidArgument, "the operation's table %q was opened by another client", op.table.info.Name)
	}
	if s.opts.Flush == SyncFlush {
		return s.applySync(ctx, op)
	}
	return s.applyBuffered(ctx, op)
}

func (s *Session) applySync(ctx context.Context, op *Operation) error {
	ctx, cancel := withTimeout(ctx, s.c.opts.Timeout)
	defer cancel()
	tb := newTableBuffer(op.table)
	t, err := tb.locate(ctx, op)
	if err != nil {
		return err
	}
	b := newBatch(op.table)
	if err := b.append(op, op.encodedSize(), 0, s.c.opts.MaxMessageSize); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return sessionClosed()
	}
	b.index[0] = s.applied
	s.applied++
	s.mu.Unlock()
	rowErrors, _ := s.send(ctx, t, b)
	if len(rowErrors) > 0 {
		return &rowErrors[0]
	}
	return nil
}

func (s *Session) applyBuffered(ctx context.Context, op *Operation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		// Each time round everything is looked at anew: a flush takes the buffers away while the lock is let go.
		if s.closed {
			return sessionClosed()
		}
		tb := s.tables[op.table]
		if tb == nil {
			tb = newTableBuffer(op.table)
			s.tables[op.table] = tb
		}
		t, err := tb.find(op)
		switch {
		case err != nil:
			return err
		case t == nil:
			// The master must be asked. Nobody else should wait for that.
			s.mu.Unlock()
			_, err = newTableBuffer(op.table).locate(ctx, op)
			s.mu.Lock()
		case s.buffered < s.opts.BufferBytes:
			return s.bufferLocked(tb, t, op)
		case s.opts.Flush == BackgroundFlush:
			err = s.waitForRoomLocked(ctx)
		default:
			err = &Error{
				Code: status.TooBusy, Err: ErrBufferFull,
				Msg: ErrBufferFull.Error() + ": call Flush, then apply the operation again",
			}
		}
		if err != nil {
			return err
		}
	}
}

// bufferLocked appends the operation to its tablet's last batch, or to a new one where that is full.
func (s *Session) bufferLocked(tb *tableBuffer, t *tablet, op *Operation) error {
	buf := tb.tablets[t]
	if buf == nil {
		buf = &tabletBuffer{tablet: t}
		tb.tablets[t] = buf
	}
	size := op.encodedSize()
	if len(buf.batches) == 0 || !buf.last().fits(size, s.opts) {
		b := s.newBatchLocked(op.table)
		if err := b.append(op, size, s.applied, s.c.opts.MaxMessageSize); err != nil {
			s.recycleLocked(b)
			return err
		}
		if len(buf.batches) == 0 {
			s.order = append(s.order, buf)
		}
		buf.batches = append(buf.batches, b)
	} else if err := buf.last().append(op, size, s.applied, s.c.opts.MaxMessageSize); err != nil {
		return err
	}
	s.buffered += size
	s.applied++
	if s.opts.Flush == BackgroundFlush {
		s.flushSoonLocked(buf)
	}
	return nil
}

// Buffered returns how many operations wait for a flush, and the bytes of these and of those being written.
func (s *Session) Buffered() (rows, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, buf := range s.order {
		for _, b := range buf.batches {
			rows += b.enc.Len()
		}
	}
	return rows, s.buffered
}

// Close flushes what is buffered, as Flush does; the session takes no operations from then on.
func (s *Session) Close(ctx context.Context) ([]RowError, error) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return s.Flush(ctx)
}

func sessionClosed() error { return status.New(status.IllegalState, "the session is closed") }

// maxFreeBatches bounds the batches that a session keeps for reuse, per table.
const maxFreeBatches = 64

func (s *Session) newBatchLocked(t *Table) *batch {
	free := s.free[t]
	if len(free) == 0 {
		return newBatch(t)
	}
	b := free[len(free)-1]
	s.free[t] = free[:len(free)-1]
	return b
}

func (s *Session) recycleLocked(b *batch) {
	if len(s.free[b.table]) < maxFreeBatches {
		b.reset()
		s.free[b.table] = append(s.free[b.table], b)
	}
}

// tableBuffer is what a session holds per table.
type tableBuffer struct {
	table   *Table
	tablets map[*tablet]*tabletBuffer

	cells []byte
	ends  []int
	key   []byte
	cell  func(i int) []byte
}

func newTableBuffer(t *Table) *tableBuffer {
	tb := &tableBuffer{table: t, tablets: make(map[*tablet]*tabletBuffer)}
	tb.cell = func(i int) []byte {
		start := 0
		if i > 0 {
			start = tb.ends[i-1]
		}
		return tb.cells[start:tb.ends[i]]
	}
	return tb
}

// find returns the operation's tablet, nil if the master must be asked.
func (tb *tableBuffer) find(op *Operation) (*tablet, error) {
	if err := tb.keyCells(op); err != nil {
		return nil, err
	}
	known := tb.table.locations.known.Load()
	tb.key = known.partition.PartitionKey(tb.table.schema, tb.cell, tb.key[:0])
	return known.find(tb.key), nil
}

func (tb *tableBuffer) keyCells(op *Operation) (err error) {
	tb.cells, tb.ends, err = op.keyCells(tb.cells[:0], tb.ends[:0])
	return err
}

// locate returns the operation's tablet. That there is none is a CodeNotFound.
func (tb *tableBuffer) locate(ctx context.Context, op *Operation) (*tablet, error) {
	if err := tb.keyCells(op); err != nil {
		return nil, err
	}
	l := tb.table.locations
	for {
		known := l.known.Load()
		tb.key = known.partition.PartitionKey(tb.table.schema, tb.cell, tb.key[:0])
		t, err := l.locate(ctx, tb.key)
		switch {
		case err != nil:
			return nil, err
		case l.known.Load().version != known.version:
			// Ranges have come or gone, and the row may belong elsewhere by that.
		case t == nil:
			return nil, tb.table.notCovered(known.partition, tb.cell)
		default:
			return t, nil
		}
	}
}
