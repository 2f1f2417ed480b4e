package cli

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// The problems that wal check knows; they stand in its output.
const (
	walAhead   = "ahead"   // timestamps further ahead of the true time than --max_ahead
	walOrder   = "order"   // timestamps that don't rise with the index
	walDamaged = "damaged" // entries that can't be read
	walGap     = "gap"     // entries that are missing
)

// walJudge looks at the entries of a log, tablet by tablet, as they come by; it keeps a few numbers of each tablet and no entry.
type walJudge struct {
	limit   hybridtime.Timestamp // timestamps above it are too far ahead
	tablets []*walTablet
	at      map[walKey]*walTablet
}

// walKey tells replicas apart. A running server doesn't say their numbers: there it is 0.
type walKey struct {
	tablet string
	number ident.LocalNumber
}

// walTablet is what is known of one replica's log.
type walTablet struct {
	walKey
	entries     int64
	first, last ident.OpID
	// committed is the index through which the log is known to be committed; unknown where known is false.
	committed uint64
	known     bool
	damage    string // of the whole log, as the store says it

	highest hybridtime.Timestamp // so far
	// below is the highest timestamp before the entry that has the highest: what --after must name to cut from that entry on.
	below    hybridtime.Timestamp
	problems map[string]*walProblem
}

// walProblem is one kind of problem of one tablet.
type walProblem struct {
	kind    string
	from    ident.OpID // the first entry that has it
	to, end uint64     // gap: the last index that is missing from the first gap, and from any
	entries int64      // that have it
	highest hybridtime.Timestamp
	after   hybridtime.Timestamp // wal trim --after this cuts from the first such entry on, or from one before it
	detail  string
}

func newWALJudge(limit hybridtime.Timestamp) *walJudge {
	return &walJudge{limit: limit, at: map[walKey]*walTablet{}}
}

// tablet returns what is known of a replica's log.
func (j *walJudge) tablet(key walKey) *walTablet {
	t := j.at[key]
	if t == nil {
		t = &walTablet{walKey: key, problems: map[string]*walProblem{}}
		j.at[key] = t
		j.tablets = append(j.tablets, t)
	}
	return t
}

// add takes the next entry of a replica's log.
func (j *walJudge) add(key walKey, e *nyalav1.WALEntry) {
	t := j.tablet(key)
	id := ident.OpID{Term: ident.Term(e.GetOpId().GetTerm()), Index: ident.Index(e.GetOpId().GetIndex())}
	ts := hybridtime.Timestamp(e.GetTimestamp())
	t.entries++
	// Without values an entry's text is what is wrong with it.
	if !e.GetCrcOk() || e.GetValue() != "" {
		t.problem(walDamaged, id).detail = cmp.Or(e.GetValue(), "it can't be read")
	}
	if t.entries == 1 {
		t.first = id
	} else if id.Index != t.last.Index+1 {
		p := t.problem(walGap, ident.OpID{Term: t.last.Term, Index: t.last.Index + 1})
		p.end = uint64(id.Index) - 1
		if p.entries == 1 {
			p.to = p.end
		}
	}
	t.last = id
	if ts == 0 {
		return
	}
	if ts > j.limit {
		p := t.problem(walAhead, id)
		p.highest = max(p.highest, ts)
		if p.entries == 1 {
			p.after = cmp.Or(t.highest, j.limit)
		}
	}
	if ts > t.highest {
		t.below, t.highest = t.highest, ts
		return
	}
	p := t.problem(walOrder, id)
	if p.entries == 1 {
		p.highest, p.after = t.highest, cmp.Or(t.below, t.highest-1)
		p.detail = fmt.Sprintf("%v isn't above %v before it", ts, t.highest)
	}
}

// problem counts one more entry with a problem, and returns it.
func (t *walTablet) problem(kind string, id ident.OpID) *walProblem {
	p := t.problems[kind]
	if p == nil {
		p = &walProblem{kind: kind, from: id}
		t.problems[kind] = p
	}
	p.entries++
	return p
}

// found returns the tablet's problems in the order in which to deal with them. In a damaged log entries that were superseded
// stand beside those that count, and nothing else can be said of it; the store's word for what is damaged counts more.
func (t *walTablet) found() []*walProblem {
	p := t.problems[walDamaged]
	if t.damage != "" {
		p = cmp.Or(p, &walProblem{kind: walDamaged})
		p.detail = t.damage
	}
	if p != nil {
		return []*walProblem{p}
	}
	var all []*walProblem
	for _, p := range t.problems {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *walProblem) int {
		return cmp.Or(cmp.Compare(a.from.Index, b.from.Index), cmp.Compare(a.kind, b.kind))
	})
	return all
}

// isCommitted says whether an entry is known to be committed.
func (t *walTablet) isCommitted(id ident.OpID) bool {
	return t.known && id.Index != 0 && uint64(id.Index) <= t.committed
}

// describe is what is wrong, for people.
func (p *walProblem) describe(truth time.Time) string {
	switch p.kind {
	case walAhead:
		return fmt.Sprintf("up to %v, %s ahead of the true time", p.highest, aheadBy(p.highest, truth))
	case walGap:
		text := fmt.Sprintf("entries %d to %d are missing", p.from.Index, p.to)
		if p.entries > 1 {
			text += fmt.Sprintf(", and %s more", plural(p.entries-1, "gap"))
		}
		return text
	}
	return p.detail
}

// aheadBy is how far a timestamp is ahead of a time, in words.
func aheadBy(ts hybridtime.Timestamp, truth time.Time) string {
	switch d := ts.Time().Sub(truth); {
	case d >= hybridtime.Year:
		return fmt.Sprintf("%.1f years", float64(d)/float64(hybridtime.Year))
	case d >= 2*hybridtime.Day:
		return fmt.Sprintf("%.1f days", float64(d)/float64(hybridtime.Day))
	default:
		return d.Round(time.Millisecond).String()
	}
}
