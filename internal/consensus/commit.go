package consensus

import (
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// Meta keys under which the clock's marks stand in the log.
const (
	MetaClockMark   wal.MetaKey = "clock_mark"
	MetaPromiseMark wal.MetaKey = "promise_mark"
)

// Commit gathers what several groups have ready for one commit of the log, with the marks that must be durable with it.
// Marks are taken by whoever commits, one commit after the other, so that a later one never holds a lower mark.
type Commit struct {
	wal.Batch
	// Appends is how many were added.
	Appends int

	used, promise          hybridtime.Timestamp
	clockMark, promiseMark []byte
}

// Add takes in an append; cut says whether a cut that it asks for is still to be done.
func (c *Commit) Add(a *Append, cut bool) {
	c.Append(a.Number, a.Entries)
	c.SetHardState(a.Number, a.HardState)
	if a.CutSuffix != 0 {
		c.CutSuffix(a.Number, a.CutSuffix)
	}
	if cut && a.CutBehind != (ident.OpID{}) {
		c.Compact(a.Number, a.CutBehind)
	}
	c.used, c.promise = max(c.used, a.MaxTimestamp), max(c.promise, a.Promise)
	c.Appends++
}

// Join takes in another commit that isn't sealed.
func (c *Commit) Join(o *Commit) {
	c.Batch.Join(&o.Batch)
	c.used, c.promise = max(c.used, o.used), max(c.promise, o.promise)
}

// Seal adds the marks that cover the timestamps of the entries and the promises. After it the batch is complete; it may
// be empty, when the durable marks cover everything.
func (c *Commit) Seal(clock Clock) {
	if c.used != 0 {
		if mark, write := clock.MarkFor(c.used); write {
			c.clockMark = mark
			c.SetMeta(MetaClockMark, mark)
		}
	}
	if c.promise != 0 {
		if mark, write := clock.PromiseMarkFor(c.promise); write {
			c.promiseMark = mark
			c.SetMeta(MetaPromiseMark, mark)
		}
	}
}

// Durable tells the clock what is durable now. It comes before any Core hears of the appends.
func (c *Commit) Durable(clock Clock) {
	if c.clockMark != nil {
		clock.MarkDurable(c.clockMark)
	}
	if c.promiseMark != nil {
		clock.PromiseDurable(c.promiseMark)
	}
}
