package e2e

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nyaladb/nyala/client"
)

// theDay is the range that TestReplacedRange drops and adds again, as the client and as the command line have it.
var theDay = client.RangePartition{Lower: []any{"20230301"}, Upper: []any{"20230302"}}

const theDaysText = "['20230301', '20230302')"

// TestReplacedRange is trial T44: programs go on writing and reading while another drops a range and adds it again. Each write lands in
// the tablet that is there or is refused; what was dropped doesn't come back.
func TestReplacedRange(t *testing.T) {
	left := "" // the one row that the table has
	inStates(t, func(s state) {
		s.ok("table", "create", "t", "--replicas", "1", "--columns", "day string, id int64, v int32", "--primary_key", "day,id", "--hash", "id:2",
			"--range", "day: "+theDaysText)
		other := state{t, s.c, connect(t, s.c), 1}
		s.replaceUnderWriters(s.open("t"), other.open("t"))
		left = s.replaceThenWrite(s.open("t"), other.open("t"))
	}, func(s state) {
		tbl := s.open("t")
		s.wantRows("what was there", s.rows(tbl), left)
		s.wantRanges("t", theDaysText)
		left = s.replaceThenWrite(tbl, state{s.T, s.c, connect(s.T, s.c), 1}.open("t"))
	})
}

// replaceUnderWriters replaces the range 50 times through one client, with another hash every other time, and lets the other one write
// and count all the while.
func (s state) replaceUnderWriters(writes, alters *client.Table) {
	s.Helper()
	ours := theDay
	ours.Hash = []client.HashPartition{{Columns: []string{"id"}, Buckets: 3, Seed: 5}}
	before := s.lookups()
	var stop atomic.Bool
	var written, refused atomic.Int64
	var writers sync.WaitGroup
	defer writers.Wait()
	defer stop.Store(true)
	for w := range 4 {
		writers.Go(func() {
			ses := s.cl.NewSession(client.SessionOptions{})
			for i := 0; !stop.Load(); i++ {
				op := writes.NewUpsert()
				if err := set(op, "20230301", 1000*(w+1)+i%1000, i); err != nil {
					s.Error(err)
					return
				}
				switch err := ses.Apply(s.Context(), op); {
				case err == nil:
					written.Add(1)
				case client.CodeOf(err) == client.CodeNotFound:
					refused.Add(1)
				default:
					s.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	apply := func(step *client.TableAlteration) *client.Table {
		s.Helper()
		now, err := step.Apply(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		return now
	}
	replaced := int64(0)
	for i := range 50 {
		next := theDay
		if i%2 == 0 {
			next = ours
		}
		if now, want := apply(alters.Alter().DropRange(theDay).AddRange(next)), 2+(i+1)%2; now.Info().Tablets != want {
			s.Fatalf("%d tablets, want %d", now.Info().Tablets, want)
		}
		if replaced++; i%10 == 0 { // not in one step, so that there are moments without the range
			apply(alters.Alter().DropRange(theDay))
			apply(alters.Alter().AddRange(next))
			replaced++
		}
		if _, err := writes.Count(s.Context(), client.ScanOptions{}); err != nil {
			s.Errorf("count: %v", err)
		}
	}
	stop.Store(true)
	writers.Wait()
	lookups := s.lookups() - before
	s.Logf("%d rows written, %d refused, %v lookups", written.Load(), refused.Load(), lookups)
	if written.Load() == 0 {
		s.Error("nothing was written")
	}
	// Only a write that meets a range that was replaced, or none, has to look up where rows go; so has each count.
	if most := 20 * (5*replaced + refused.Load()); lookups >= float64(most) {
		s.Errorf("%v lookups, want less than %d", lookups, most)
	}
}

// lookups is how often the master was asked for tables and places of tablets.
func (s state) lookups() float64 {
	s.Helper()
	servers, err := s.c.Servers()
	if err != nil {
		s.Fatal(err)
	}
	return metric(s.T, servers[0], "rpc_duration_seconds_count", "GetTableLocations") + metric(s.T, servers[0], "rpc_duration_seconds_count", "GetTable\"")
}

// replaceThenWrite replaces the range, through a client and by commands, and lets those write a row to it who knew it before: a client, a
// program that loads rows, and one that starts afresh. Each time the range has that row alone. It returns the last one.
func (s state) replaceThenWrite(writes, alters *client.Table) string {
	s.Helper()
	v := 0
	// write shows that one write takes few lookups, and that it is all that is there.
	write := func(what string, apply func(v int)) {
		s.Helper()
		v++
		before := s.lookups()
		apply(v)
		if n := s.lookups() - before; !(n < 20) {
			s.Errorf("%s: one write took %v lookups", what, n)
		}
		s.wantRows(what, s.rows(writes), fmt.Sprint("20230301 7 ", v))
		s.wantCount(writes, what, 1, "day = '20230301'")
		s.nyala("", "table", "scan", "t", "--format", "csv").want(s.T, what, 0, fmt.Sprintf("day,id,v\n20230301,7,%d\n", v))
	}
	byClient := func(v int) {
		s.Helper()
		if err := s.apply(writes.NewInsert(), "20230301", 7, v); err != nil {
			s.Errorf("insert into the new tablet: %v", err)
		}
	}
	line := func(v int) string { return fmt.Sprintf("20230301,7,%d\n", v) }
	for range 3 {
		if _, err := alters.Alter().DropRange(theDay).AddRange(theDay).Apply(s.Context()); err != nil {
			s.Fatal(err)
		}
		write("replaced by a client, written by another", byClient)
	}

	// Without the range every writer is told the same.
	const text = `no range partition for the row: day = '20230301'`
	s.ok("table", "alter", "drop_range_partition", "t", theDaysText)
	wantError(s.T, "insert without the range", s.apply(writes.NewInsert(), "20230301", 7, 0), client.CodeNotFound, text)
	s.nyala("day,id,v\n"+line(0), "table", "load", "t", "-").wantError(s.T, "load without the range", 4, text)
	s.wantCount(writes, "without the range", 0, "day = '20230301'")
	s.ok("table", "alter", "add_range_partition", "t", theDaysText)
	s.wantCount(writes, "the new range", 0, "day = '20230301'")
	write("replaced by commands, written by a client", byClient)

	replace := func() {
		s.Helper()
		s.ok("table", "alter", "drop_range_partition", "t", theDaysText)
		s.ok("table", "alter", "add_range_partition", "t", theDaysText)
	}
	replace()
	write("replaced and written by commands", func(v int) {
		s.Helper()
		s.nyala("day,id,v\n"+line(v), "table", "load", "t", "-").want(s.T, "load", 0, "")
	})

	// One command that loads rows before and after.
	rows, feed := io.Pipe()
	loaded := make(chan result, 1)
	go func() { loaded <- s.inProcessFrom(rows, "table", "load", "t", "-", "--input_format", "csv") }()
	defer feed.Close()
	send := func(text string) {
		s.Helper()
		if _, err := io.WriteString(feed, text); err != nil {
			s.Fatal(err)
		}
	}
	send("day,id,v\n20230301,8,8\n")
	for n := uint64(0); n != 2; { // until it is there, beside the one from before
		var err error
		if n, err = writes.Count(s.Context(), client.ScanOptions{}); err != nil {
			s.Fatal(err)
		}
	}
	replace()
	write("replaced by commands amid a load", func(v int) {
		s.Helper()
		send(line(v))
		feed.Close()
		(<-loaded).want(s.T, "load", 0, "")
	})
	return fmt.Sprint("20230301 7 ", v)
}
