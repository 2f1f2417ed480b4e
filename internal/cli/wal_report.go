package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// walRow is one problem as it is printed.
type walRow struct {
	tablet    string
	problem   string
	from      string
	entries   string
	committed string
	detail    string
	todo      string
}

// walTabletJSON is one replica's log in `wal check --format json`.
type walTabletJSON struct {
	Tablet           string           `json:"tablet"`
	Replica          uint64           `json:"replica_number,omitempty"` // of a stopped server
	Entries          int64            `json:"entries"`
	First            string           `json:"first,omitempty"` // term.index
	Last             string           `json:"last,omitempty"`
	CommittedThrough *uint64          `json:"committed_through"` // null: not known
	Problems         []walProblemJSON `json:"problems"`
}

type walProblemJSON struct {
	Problem   string  `json:"problem"`
	From      string  `json:"from,omitempty"`
	Entries   int64   `json:"entries"`
	Committed *bool   `json:"known_committed"` // null: can't be said
	Highest   *string `json:"highest,omitempty"`
	TrimAfter *string `json:"trim_after,omitempty"` // wal trim --after this takes it out
	Detail    string  `json:"detail"`
	ToDo      string  `json:"to_do"`
}

type walMarkJSON struct {
	Name      string  `json:"name"`
	Timestamp *string `json:"timestamp"`
	Problem   string  `json:"problem,omitempty"`
	ToDo      string  `json:"to_do,omitempty"`
}

// toJSON is the whole report, tablets without problems included.
func (r *walReport) toJSON() any {
	doc := struct {
		Source   string          `json:"source"`
		Running  bool            `json:"running"`
		Backup   string          `json:"backup_of,omitempty"`
		TrueTime string          `json:"true_time"`
		MaxAhead string          `json:"max_ahead"`
		Damaged  string          `json:"damaged,omitempty"`
		Marks    []walMarkJSON   `json:"marks"`
		Tablets  []walTabletJSON `json:"tablets"`
	}{
		Source: r.source, Running: r.running, Backup: r.backup, TrueTime: hybridtime.FromTime(r.truth).String(), MaxAhead: r.maxAhead.String(),
		Damaged: r.whole, Marks: []walMarkJSON{}, Tablets: []walTabletJSON{},
	}
	for _, m := range r.marks {
		j := walMarkJSON{Name: m.name, Timestamp: timestampOrNull(m.ts)}
		if j.Problem = r.markProblem(m); j.Problem != "" {
			j.ToDo = markToDo
		}
		doc.Marks = append(doc.Marks, j)
	}
	for _, t := range r.judge.tablets {
		j := walTabletJSON{Tablet: t.tablet, Replica: uint64(t.number), Entries: t.entries, Problems: []walProblemJSON{}}
		if t.entries > 0 {
			j.First, j.Last = t.first.String(), t.last.String()
		}
		if t.known {
			j.CommittedThrough = &t.committed
		}
		for _, p := range t.found() {
			pj := walProblemJSON{
				Problem: p.kind, Entries: p.entries, Detail: p.describe(r.truth), ToDo: r.toDo(t, p),
				Highest: timestampOrNull(p.highest), TrimAfter: timestampOrNull(p.after),
			}
			if p.from.Index != 0 {
				pj.From = p.from.String()
			}
			if t.known && p.from.Index != 0 {
				yes := t.isCommitted(p.from)
				pj.Committed = &yes
			}
			j.Problems = append(j.Problems, pj)
		}
		doc.Tablets = append(doc.Tablets, j)
	}
	return doc
}

func timestampOrNull(ts hybridtime.Timestamp) *string {
	if ts == 0 {
		return nil
	}
	text := ts.String()
	return &text
}

// rows are the problems found.
func (r *walReport) rows() []walRow {
	var rows []walRow
	if r.whole != "" {
		rows = append(rows, walRow{tablet: "-", problem: walDamaged, from: "-", committed: "-", detail: "the whole file: " + r.whole, todo: wholeToDo})
	}
	for _, m := range r.marks {
		if what := r.markProblem(m); what != "" {
			rows = append(rows, walRow{tablet: "-", problem: m.name, from: "-", committed: "-", detail: what, todo: markToDo})
		}
	}
	for _, t := range r.judge.tablets {
		for _, p := range t.found() {
			row := walRow{
				tablet: orDash(t.tablet), problem: p.kind, from: "-", committed: "-", detail: p.describe(r.truth), todo: r.toDo(t, p),
			}
			if p.entries > 0 && p.kind != walGap {
				row.entries = strconv.FormatInt(p.entries, 10)
			}
			if p.from.Index != 0 {
				row.from = p.from.String()
				row.committed = "not known"
				if t.isCommitted(p.from) {
					row.committed = "yes"
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// printFound prints the problems, and what to do about each.
func printFound(w io.Writer, rows []walRow) error {
	g := newGrid("TABLET", "PROBLEM", "FROM", "ENTRIES", "COMMITTED", "DETAIL").numbers(2, 3)
	for _, r := range rows {
		g.add(r.tablet, r.problem, r.from, r.entries, r.committed, r.detail)
	}
	if err := g.print(w); err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString("\nWhat to do\n")
	for _, r := range rows {
		name := r.problem
		if r.tablet != "-" {
			name = r.tablet + ", " + name
		}
		fmt.Fprintf(&b, "  %s: %s\n", name, printable(r.todo))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markProblem says what is wrong with a mark, if anything is.
func (r *walReport) markProblem(m walMark) string {
	switch {
	case m.bad != "":
		return m.bad
	case m.ts > r.judge.limit:
		return fmt.Sprintf("%v, %s ahead of the true time", m.ts, aheadBy(m.ts, r.truth))
	}
	return ""
}

const (
	markToDo = "the server gave out or promised such timestamps itself and never goes behind them: until its clock is there it follows, and " +
		"leads nothing. Where its tablets' other replicas are healthy it can be started anew with empty folders"
	wholeToDo = "the server doesn't start with it; its tablets live by their other replicas (nyala cluster ksck). To go on without it, keep " +
		"the folders and start the server with empty ones"
)

// toDo says what to do about a problem.
func (r *walReport) toDo(t *walTablet, p *walProblem) string {
	if r.backup != "" {
		return "nothing: these entries were taken out of a log and are kept here"
	}
	switch p.kind {
	case walAhead, walOrder:
		return r.stampsToDo(t, p)
	}
	return "the replica fails alone and takes part in nothing; its tablet lives by the other replicas: nyala cluster ksck"
}

// stampsToDo is toDo for timestamps.
func (r *walReport) stampsToDo(t *walTablet, p *walProblem) string {
	if a := t.problems[walAhead]; p.kind == walOrder && a != nil && a.from.Index < p.from.Index {
		return fmt.Sprintf("this goes with the entries from %v on", a.from)
	}
	if t.isCommitted(p.from) {
		if p.kind == walOrder {
			return "committed, so the other replicas hold the same: none of them starts with it. docs/repair.md says what trim --force does"
		}
		return fmt.Sprintf("committed: the tablet's replicas lead again once the time is %s. docs/repair.md says what trim --force does",
			p.highest.Add(-r.maxAhead).Time().Format(time.RFC3339))
	}
	dir := r.dir
	if dir == "" {
		dir = "FOLDER"
	}
	trim := fmt.Sprintf("nyala wal trim --dir %s --tablet %s --after %v", dir, t.tablet, p.after)
	if r.running {
		return "where the tablet has a leader its log replaces them. Where it has none, check the other replicas' logs too; if none of them " +
			"holds them as committed, stop the server, then: " + trim
	}
	return "where the tablet's other replicas have a leader, start the server: that leader's log replaces them. Where they have none, check their logs " +
		"too; if none of them holds these as committed: " + trim
}

// opIDs writes a range of entries.
func opIDs(from, to ident.OpID) string {
	if from == to {
		return from.String()
	}
	return fmt.Sprintf("%v to %v", from, to)
}
