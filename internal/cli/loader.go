package cli

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

const (
	// loadBatchRows and loadBatchBytes bound what one session writes at once.
	loadBatchRows  = 2000
	loadBatchBytes = 4 << 20
	// loadLinger is how long a row that arrived waits for more before it is written.
	loadLinger = 200 * time.Millisecond
	// loadMemory bounds the rows that have been read and not yet written.
	loadMemory = 64 << 20
	// loadGrace is how long batches under way may go on after Ctrl-C.
	loadGrace = 5 * time.Second
	// maxRejectedShown bounds the rejected rows that are named.
	maxRejectedShown = 10
)

// badValueReason counts the rows that the input can't be read as.
const badValueReason = "bad value"

// load writes the rows of an input into a table.
//
// One goroutine reads rows and hands each to one of several writers, by a hash of its primary key; each writer has a session
// of its own and one batch under way at a time. Rows with the same key thus go through one writer, in their order (I4). The
// rows between reader and servers are bounded by count (the writers' queues) and by bytes (the semaphore).
type load struct {
	client      *client.Client
	table       *client.Table
	op          client.OpType
	sessions    int
	maxRejected int
	via         string // the server to write through; "": each tablet's leader
	// rejected is told of the first rows that are rejected.
	rejected func(place string, err error)

	began   time.Time
	written atomic.Int64
	memory  *semaphore.Weighted
	rows    sync.Pool

	// mu guards what follows.
	mu            sync.Mutex
	source        rowSource
	rejectedCount int64
	reasons       map[string]int64
	unknown       int64
	last          hybridtime.Timestamp
	failure       error
}

// loadResult is what became of a load.
type loadResult struct {
	began             bool // the input suits the table
	written, rejected int64
	reasons           string // why rows were rejected, with counts
	unknown           int64  // rows that may or may not be written
	last              hybridtime.Timestamp
	took              time.Duration
	err               error // why it ended before the input did
}

// run loads the rows of the source that open returns, until its end, a failure, or the end of ctx. Batches under way then
// are waited for.
func (l *load) run(ctx context.Context, open func() (rowSource, error)) loadResult {
	l.began = time.Now()
	l.memory = semaphore.NewWeighted(loadMemory)
	l.reasons = map[string]int64{}
	l.rows.New = func() any { return newInputRow(l.table.Schema().NumColumns()) }
	// stop ends the reading and the waiting for rows; write ends the batches under way, a while later.
	stop, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	write, cancelWrite := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelWrite()
	defer context.AfterFunc(ctx, func() {
		t := time.AfterFunc(loadGrace, cancelWrite)
		context.AfterFunc(write, func() { t.Stop() })
	})()

	queues := make([]chan *inputRow, l.sessions)
	var writers sync.WaitGroup
	for i := range queues {
		queues[i] = make(chan *inputRow, 256)
		writers.Go(func() {
			w := &loadWriter{load: l, session: l.client.NewSession(client.SessionOptions{Flush: client.ManualFlush, Via: l.via})}
			if err := w.run(stop, write, queues[i]); err != nil {
				l.fail(err)
				cancel(err)
			}
		})
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		if err := l.read(stop, open, queues); err != nil {
			l.fail(err) // what was read before is written all the same
		}
		for _, q := range queues {
			close(q)
		}
	}()
	// The reader may hang in a read of standard input: after a stop nobody waits for it. The writers end either way.
	select {
	case <-read:
	case <-stop.Done():
		if ctx.Err() != nil {
			l.fail(ctx.Err())
		}
	}
	writers.Wait()
	return l.result()
}

// fail notes why the load ends; the first reason counts.
func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failure == nil {
		l.failure = err
	}
}

// read hands the source's rows to the writers.
func (l *load) read(ctx context.Context, open func() (rowSource, error), queues []chan *inputRow) error {
	src, err := open()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.source = src
	l.mu.Unlock()
	seed := maphash.MakeSeed()
	for {
		row := l.rows.Get().(*inputRow)
		err := src.next(row)
		var bad *badRow
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.As(err, &bad):
			if err := l.reject(bad.line, bad.err, badValueReason); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		row.bytes = min(row.bytes, loadMemory)
		if err := l.memory.Acquire(ctx, row.bytes); err != nil {
			return context.Cause(ctx)
		}
		select {
		case queues[l.keyHash(seed, row)%uint64(len(queues))] <- row:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// keyHash is the same for rows with the same primary key. Values that are unset get their default, which no row of the same
// input gives explicitly and differently: an input has a key column in each row or in none.
func (l *load) keyHash(seed maphash.Seed, row *inputRow) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for i := range l.table.Schema().NumKeyColumns() {
		v := row.values[i]
		if b := v.Bytes(); b != nil {
			_, _ = h.Write(b) // never fails
		} else {
			maphash.WriteComparable(&h, v.Int())
		}
		_ = h.WriteByte(0xff)
	}
	return h.Sum64()
}

// reject notes a row that isn't written. It fails when there have been too many.
func (l *load) reject(line uint64, err error, reason string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rejectedCount++
	l.reasons[reason]++
	if l.rejectedCount <= maxRejectedShown {
		l.rejected(l.source.place(line), err)
	}
	if l.maxRejected > 0 && l.rejectedCount >= int64(l.maxRejected) {
		return fmt.Errorf("%s rejected (--max_rejected %d)", plural(l.rejectedCount, "row"), l.maxRejected)
	}
	return nil
}

func (l *load) result() loadResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	var reasons []string
	for r, n := range l.reasons {
		if r == badValueReason && n != 1 {
			r += "s"
		}
		reasons = append(reasons, thousands(n)+" "+r)
	}
	slices.Sort(reasons)
	return loadResult{
		began: l.source != nil, written: l.written.Load(), rejected: l.rejectedCount, reasons: strings.Join(reasons, ", "), unknown: l.unknown,
		last: l.last, took: time.Since(l.began), err: l.failure,
	}
}

// loadWriter writes the rows of one queue.
type loadWriter struct {
	*load
	session *client.Session
	row     *client.Operation
	rows    int
	bytes   int64
}

// run writes rows until the queue is closed or stop ends. What is buffered when stop ends is dropped: it was never sent.
func (w *loadWriter) run(stop, write context.Context, queue <-chan *inputRow) error {
	var err error
	if w.row, err = w.table.NewOperation(w.op); err != nil {
		return err
	}
	linger := time.NewTimer(loadLinger)
	defer linger.Stop()
	for {
		select {
		case row, ok := <-queue:
			if !ok {
				return w.flush(write)
			}
			if w.rows == 0 {
				linger.Reset(loadLinger)
			}
			if err := w.apply(write, row); err != nil {
				return err
			}
			if w.rows < loadBatchRows && w.bytes < loadBatchBytes {
				continue
			}
		case <-linger.C:
		case <-stop.Done():
			return nil
		}
		if stop.Err() != nil {
			return nil
		}
		if err := w.flush(write); err != nil {
			return err
		}
	}
}

// apply puts one row in the session's buffer.
func (w *loadWriter) apply(ctx context.Context, row *inputRow) error {
	w.row.Reset()
	w.row.Tag = row.line
	var err error
	for i, set := range row.set {
		if set && err == nil {
			err = w.row.SetValue(i, row.values[i])
		}
	}
	if err == nil {
		err = w.session.Apply(ctx, w.row)
	}
	bytes, line := row.bytes, row.line
	w.load.rows.Put(row)
	if err == nil {
		w.rows++
		w.bytes += bytes
		return nil
	}
	w.memory.Release(bytes)
	if !ofRow(err) {
		return err
	}
	return w.reject(line, err, reasonOf(err))
}

// ofRow says whether an error concerns one row and not the table or the cluster.
func ofRow(err error) bool {
	switch client.CodeOf(err) {
	case client.CodeInvalidArgument, client.CodeCellTooLarge, client.CodeKeyTooLarge, client.CodeTooLarge, client.CodeNotFound:
		return true
	default:
		return false
	}
}

// flush writes what is buffered.
func (w *loadWriter) flush(ctx context.Context) error {
	if w.rows == 0 {
		return nil
	}
	faults, err := w.session.Flush(ctx)
	w.memory.Release(w.bytes)
	w.written.Add(int64(w.rows - len(faults)))
	w.rows, w.bytes = 0, 0
	w.note(w.session.LastTimestamp())
	for _, f := range faults {
		if err != nil && !isAnswer(f.Code) {
			// Its batch failed as a whole: not rejected, just not written as far as is known.
			if f.OutcomeUnknown {
				w.countUnknown()
			}
			continue
		}
		if rerr := w.reject(f.Op.Tag, f.Err, reasonOf(f.Err)); rerr != nil && err == nil {
			err = rerr
		}
	}
	return err
}

// isAnswer says whether a code is a server's verdict on one row.
func isAnswer(code client.Code) bool {
	switch code {
	case client.CodeAlreadyPresent, client.CodeNotFound, client.CodeInvalidArgument, client.CodeCellTooLarge, client.CodeKeyTooLarge,
		client.CodeRowNotInPartition:
		return true
	default:
		return false
	}
}

func (l *load) note(ts hybridtime.Timestamp) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, ts)
}

func (l *load) countUnknown() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unknown++
}

// reasonOf is why a row was rejected, in a word or two.
func reasonOf(err error) string {
	return strings.ToLower(strings.ReplaceAll(client.CodeOf(err).String(), "_", " "))
}
