package e2e

import (
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

// flightData is a file of flights, how a table for it is divided, and facts that were counted from the file by other means.
type flightData struct {
	file   string
	rows   int
	ranges []string // the first ones, in rising order
	later  string   // the range that is added when the rows of the first ones are there
	late   int      // rows of that range
	counts map[string]int
	facts  flightFacts
}

// flightFacts are of whole columns.
type flightFacts struct{ distance, arrDelay, leastDepDelay, mostDepDelay int }

// flightsVar names a file with the whole year of flights.
const flightsVar = "NYALA_FLIGHTS"

// january is in the repository.
var january = flightData{
	file: "examples/flights/flights-2013-01.csv.gz", rows: 27_004,
	ranges: flightRanges("2013-01-01", "2013-01-08", "2013-01-15", "2013-01-22", "2013-02-01"), later: flightRanges("2013-02-01", "2013-02-02")[0], late: 139,
	counts: map[string]int{
		"origin = 'EWR'": 9893, "origin = 'JFK'": 9161, "origin = 'LGA'": 7950, "carrier = 'UA' and month = 1": 4637,
		"dest in ('IAH', 'LAX')": 1723, "arr_delay < -60": 11, "dep_time is null": 521, "arr_delay is null": 606, "tailnum is null": 155,
		"tailnum = 'N14228'": 15,
	},
	facts: flightFacts{27_188_805, 161_819, -30, 1301},
}

// year2013 is the whole year, divided by month.
var year2013 = flightData{
	rows: 336_776,
	ranges: flightRanges("2013-01-01", "2013-02-01", "2013-03-01", "2013-04-01", "2013-05-01", "2013-06-01", "2013-07-01", "2013-08-01",
		"2013-09-01", "2013-10-01", "2013-11-01", "2013-12-01", "2014-01-01"),
	later: flightRanges("2014-01-01", "2014-01-02")[0], late: 88,
	counts: map[string]int{
		"origin = 'EWR'": 120_835, "origin = 'JFK'": 111_279, "origin = 'LGA'": 104_662, "carrier = 'UA' and month = 1": 4637,
		"dest in ('IAH', 'LAX')": 23_372, "arr_delay < -60": 199, "dep_time is null": 8255, "arr_delay is null": 9430, "tailnum is null": 2512,
		"tailnum = 'N14228'": 111,
	},
	facts: flightFacts{350_217_607, 2_257_174, -43, 1301},
}

const flightColumns = "time_hour unixtime_micros, carrier string, flight int16, origin string, year int16 null, month int8 null, day int8 null, " +
	"dep_time int16 null, sched_dep_time int16 null, dep_delay int16 null, arr_time int16 null, sched_arr_time int16 null, " +
	"arr_delay int16 null, tailnum string null, dest string null, air_time int16 null, distance int16 null, hour int8 null, minute int8 null"

// flightRanges are the ranges between days.
func flightRanges(days ...string) []string {
	var out []string
	for i := range len(days) - 1 {
		out = append(out, fmt.Sprintf("['%sT00:00:00Z', '%sT00:00:00Z')", days[i], days[i+1]))
	}
	return out
}

// TestFlights is trial T55 with the month of flights that is in the repository, and with the whole year where NYALA_FLIGHTS names it.
func TestFlights(t *testing.T) {
	t.Run("month", func(t *testing.T) { tryFlights(t, january) })
	t.Run("year", func(t *testing.T) {
		d := year2013
		if d.file = os.Getenv(flightsVar); d.file == "" {
			t.Skipf("%s names no file with the flights of 2013: make trials FLIGHTS=flights-2013.csv.gz", flightsVar)
		}
		tryFlights(t, d)
	})
}

// readFlights returns the rows' fields in the order of the columns, all rows.
func readFlights(t *testing.T, d flightData, columns []client.Column) [][]string {
	t.Helper()
	path := d.file
	if !strings.HasPrefix(path, "/") {
		path = "../../" + path
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	records, err := csv.NewReader(z).ReadAll()
	if err != nil || len(records) != d.rows+1 {
		t.Fatalf("%s has %d lines, want %d: %v", d.file, len(records), d.rows+1, err)
	}
	rows := make([][]string, d.rows)
	for i, r := range records[1:] {
		for _, c := range columns {
			text := r[slices.Index(records[0], c.Name)]
			if text == "NA" {
				text = "NULL"
			}
			rows[i] = append(rows[i], text)
		}
	}
	return rows
}

// tryFlights loads a file in random order through four sessions, while the server that leads most is killed with -9 and comes back,
// into ranges that leave some rows out; then adds a range and loads the file again; and asks for what is known of it.
func tryFlights(t *testing.T, d flightData) {
	var rows [][]string
	inStatesOn(t, 3, func(s state) {
		s.ok("table", "create", "flights", "--columns", flightColumns, "--primary_key", "time_hour,carrier,flight,origin",
			"--hash", "carrier,flight:4", "--range", "time_hour: "+strings.Join(d.ranges, ", "))
		tbl := s.open("flights")
		rows = readFlights(t, d, tbl.Columns())
		if refused := s.insertFlights(tbl, rows); refused != d.late {
			t.Errorf("%d rows were in no range, want %d", refused, d.late)
		}
		s.wantCount(tbl, "the first ranges", d.rows-d.late, "year = 2013")
		s.ok("table", "alter", "add_range_partition", "flights", d.later)
		load := s.nyala("", "table", "load", "flights", d.file, "--null", "NA", "--op", "insert_ignore")
		if load.code != 0 {
			t.Errorf("load again: exit code %d, %s", load.code, load.err)
		}
	}, func(s state) {
		tbl := s.open("flights")
		s.wantCount(tbl, "all", d.rows, "year = 2013")
		for clause, want := range d.counts {
			s.wantCount(tbl, clause, want, clause)
		}
		want := map[string]bool{}
		for _, r := range rows {
			want[strings.Join(r, " ")] = true
		}
		got, facts := s.scanFlights(tbl)
		for _, r := range got {
			if !want[r] {
				s.Fatalf("the table has a row %q", r)
			}
			delete(want, r)
		}
		if len(want) > 0 {
			s.Errorf("%d rows are missing, as %q", len(want), slices.Sorted(maps.Keys(want))[0])
		}
		if facts != d.facts {
			s.Errorf("facts %+v, want %+v", facts, d.facts)
		}
		out := s.nyala("", "table", "scan", "flights", "--format", "csv").out
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")[1:]
		said := make([]string, 0, len(lines))
		for _, r := range rows {
			said = append(said, strings.ReplaceAll(strings.Join(r, ","), "NULL", "")) // no value has the word in it
		}
		slices.Sort(lines)
		slices.Sort(said)
		if !slices.Equal(lines, said) {
			s.Errorf("the command line has %d other rows than the file", len(lines))
		}
	})
}

// insertFlights returns how many rows are in no range. No row is refused for another reason: none comes twice.
func (s state) insertFlights(tbl *client.Table, rows [][]string) int {
	s.Helper()
	const sessions = 4
	order := rand.Perm(len(rows))
	columns := tbl.Columns()
	var refused, done atomic.Int64
	half := make(chan struct{})
	var workers sync.WaitGroup
	for w := range sessions {
		workers.Go(func() {
			ses := s.cl.NewSession(client.SessionOptions{Flush: client.BackgroundFlush})
			for _, i := range order[w*len(rows)/sessions : (w+1)*len(rows)/sessions] {
				op := tbl.NewInsert()
				var err error
				for k := range columns {
					if rows[i][k] != "NULL" {
						v, perr := columns[k].ParseText(rows[i][k])
						err = errors.Join(err, perr, op.Set(columns[k].Name, v))
					}
				}
				if err == nil {
					err = ses.Apply(s.Context(), op)
				}
				if client.CodeOf(err) == status.NotFound && strings.Contains(err.Error(), "no range partition") {
					refused.Add(1)
				} else if err != nil {
					s.Errorf("row %d: %v", i, err)
					return
				}
				if done.Add(1) == int64(len(rows)/2) {
					close(half)
				}
			}
			if faults, err := ses.Close(s.Context()); err != nil || len(faults) > 0 {
				s.Errorf("close: %d row errors, %v", len(faults), errors.Join(err, firstOf(faults)))
			}
		})
	}
	all := make(chan struct{})
	go func() { workers.Wait(); close(all) }()
	select {
	case <-half:
		name := s.busiestLeader()
		if err := s.c.Kill(name); err != nil {
			s.Error(err)
		}
		if err := s.c.Start(s.Context(), name); err != nil {
			s.Error(err)
		}
	case <-all:
	}
	<-all
	return int(refused.Load())
}

func firstOf(faults []client.RowError) error {
	if len(faults) == 0 {
		return nil
	}
	return &faults[0]
}

// busiestLeader is the name of the tablet server that leads the most tablets.
func (s state) busiestLeader() string {
	s.Helper()
	list, err := s.cl.ListTabletServers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	most := slices.MaxFunc(list, func(a, b client.TabletServer) int { return a.Leaders - b.Leaders })
	for _, server := range tabletServers(s.T, s.c) {
		if slices.Contains(most.RPCAddresses, server.RPC) {
			return server.Name
		}
	}
	s.Fatalf("no server of the cluster is %v", most.RPCAddresses)
	return ""
}

// scanFlights returns all rows as text, and the facts of whole columns.
func (s state) scanFlights(tbl *client.Table) ([]string, flightFacts) {
	s.Helper()
	f := flightFacts{leastDepDelay: 1 << 20, mostDepDelay: -1 << 20}
	rows := s.scanEach(tbl, client.ScanOptions{}, func(value func(name string) client.Value) {
		if v := value("distance"); !v.IsNull() {
			f.distance += int(v.Int())
		}
		if v := value("arr_delay"); !v.IsNull() {
			f.arrDelay += int(v.Int())
		}
		if v := value("dep_delay"); !v.IsNull() {
			f.leastDepDelay, f.mostDepDelay = min(f.leastDepDelay, int(v.Int())), max(f.mostDepDelay, int(v.Int()))
		}
	})
	return rows, f
}
