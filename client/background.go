package client

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nyaladb/nyala/internal/status"
)

// background is what a session with BackgroundFlush has under way. All of it is guarded by Session.mu.
type background struct {
	// running: a goroutine flushes. due: it is to flush once more.
	running, due bool
	// linger ends when what has been buffered has waited long enough; nil: nothing waits.
	linger *time.Timer
	// room is closed, and made anew, when memory is given back.
	room chan struct{}
	// errors are those that nobody has taken yet, dropped counts those beyond the bound, and failure is the first of a batch
	// that failed as a whole.
	errors  []RowError
	dropped int
	failure error
}

// PendingErrors takes the row errors that background flushes have met so far, in the order of Apply, and how many more were
// dropped because nobody took them in time (SessionOptions.MaxErrors). Flush and Close return them too.
func (s *Session) PendingErrors() (rows []RowError, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, dropped = s.bg.errors, s.bg.dropped
	s.bg.errors, s.bg.dropped = nil, 0
	slices.SortFunc(rows, func(a, b RowError) int { return cmp.Compare(a.Index, b.Index) })
	return rows, dropped
}

// flushSoonLocked is called after each operation that was buffered: it starts a flush when half of the buffer is full or one
// tablet has a request's worth, and otherwise sees to it that the operation doesn't lie longer than FlushInterval.
func (s *Session) flushSoonLocked(buf *tabletBuffer) {
	if s.buffered >= s.opts.BufferBytes/2 || len(buf.batches) > 1 {
		s.startFlushLocked()
		return
	}
	if s.bg.linger == nil {
		s.bg.linger = time.AfterFunc(s.opts.FlushInterval, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.startFlushLocked()
		})
	}
}

// startFlushLocked has what is buffered flushed in the background. What is applied while a flush is under way goes with the next.
func (s *Session) startFlushLocked() {
	s.bg.due = true
	if s.bg.running || len(s.order) == 0 {
		return
	}
	s.bg.running = s.c.goroutine(s.flushBehind)
}

// started notes that all that was buffered is being sent.
func (b *background) started() {
	b.due = false
	if b.linger != nil {
		b.linger.Stop()
		b.linger = nil
	}
}

// flushBehind flushes as long as a flush is due.
func (s *Session) flushBehind() {
	for {
		s.mu.Lock()
		if !s.bg.due || len(s.order) == 0 || s.c.isClosed() {
			s.bg.running = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		s.flushBuffered(s.c.life)
	}
}

// flushBuffered flushes what is buffered now, and keeps the errors for who asks.
func (s *Session) flushBuffered(ctx context.Context) {
	rows, err := s.flushNow(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	keep := min(len(rows), max(0, s.opts.MaxErrors-len(s.bg.errors)))
	s.bg.errors = append(s.bg.errors, rows[:keep]...)
	s.bg.dropped += len(rows) - keep
	if s.bg.failure == nil {
		s.bg.failure = err
	}
}

// flushAll is Flush for a session with BackgroundFlush: it waits for what is under way, sends the rest, and returns every error
// that nobody has taken.
func (s *Session) flushAll(ctx context.Context) ([]RowError, error) {
	s.flushBuffered(ctx)
	rows, dropped := s.PendingErrors()
	s.mu.Lock()
	err := s.bg.failure
	s.bg.failure = nil
	s.mu.Unlock()
	if dropped > 0 {
		err = errors.Join(err, status.New(status.TooBusy,
			"%d more row errors were dropped: take them more often, or raise MaxErrors (%d)", dropped, s.opts.MaxErrors))
	}
	return rows, err
}

// waitForRoomLocked waits, with the lock let go, until a flush has given memory back.
func (s *Session) waitForRoomLocked(ctx context.Context) error {
	s.startFlushLocked()
	if s.bg.room == nil {
		s.bg.room = make(chan struct{})
	}
	room := s.bg.room
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-room:
		return nil
	case <-ctx.Done():
		return status.Wrap(status.CodeOf(ctx.Err()), ctx.Err(), "the session's buffer is full, and its rows are still being written")
	case <-s.c.life.Done():
		return closedError()
	}
}

// releasedLocked is called when buffered operations have been decided.
func (s *Session) releasedLocked() {
	if s.bg.room != nil {
		close(s.bg.room)
		s.bg.room = nil
	}
}
