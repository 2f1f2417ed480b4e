package e2e

import (
	"compress/gzip"
	"encoding/csv"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/cli"
)

// readData returns a file of testdata as it is, unpacked if its name ends in .gz.
func readData(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// readRecords returns a CSV file's records without the line of names.
func readRecords(t *testing.T, name string) [][]string {
	t.Helper()
	records, err := csv.NewReader(strings.NewReader(readData(t, name))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return records[1:]
}

// inProcess runs the command line in this process, for tests that run it hundreds of times.
func (s state) inProcess(stdin string, args ...string) result {
	s.Helper()
	return s.inProcessFrom(strings.NewReader(stdin), args...)
}

func (s state) inProcessFrom(stdin io.Reader, args ...string) result {
	s.Helper()
	var out, errs strings.Builder
	code := cli.Run(s.Context(), s.arguments(args), cli.Streams{In: stdin, Out: &out, Err: &errs})
	return result{out: out.String(), err: errs.String(), code: code}
}

// load fills a table from text through the command line.
func (s state) load(table, text string, flags ...string) {
	s.Helper()
	if r := s.nyala(text, append([]string{"table", "load", table, "-"}, flags...)...); r.code != 0 {
		s.Fatalf("load %s: exit code %d, %s", table, r.code, r.err)
	}
}

// sortedLines returns what a command printed behind its first line, line by line in order.
func sortedLines(out string) []string {
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")[1:]
	slices.Sort(lines)
	return lines
}

// TestAirports is trial T57: blank isn't NULL, NA is a country; an export comes back as what it was.
func TestAirports(t *testing.T) {
	const columns = "icao string, iata string null, name string, country string, elevation decimal(9,2), lat double, lon double"
	file := readData(t, "airports.csv.gz")
	inStates(t, func(s state) {
		for _, name := range []string{"blank", "nulls", "again", "ranges"} {
			args := []string{"table", "create", name, "--replicas", "1", "--columns", columns, "--primary_key", "icao"}
			if name == "ranges" {
				args = append(args, "--range", "icao: [, 'K'), ['K', 'L'), ['L', )")
			} else {
				args = append(args, "--hash", "icao:3")
			}
			s.ok(args...)
		}
		s.load("blank", file, "--null", "nothing means NULL")
		s.load("nulls", file)
		s.load("again", s.nyala("", "table", "scan", "blank", "--format", "csv").out)
		s.load("ranges", s.nyala("", "table", "scan", "nulls", "--format", "csv").out)
	}, func(s state) {
		records := readRecords(t, "airports.csv.gz")
		for _, name := range []string{"blank", "nulls", "again", "ranges"} {
			tbl := s.open(name)
			blanks, nulls := 20_414, 0
			if name == "nulls" || name == "ranges" {
				blanks, nulls = nulls, blanks
			}
			for clause, want := range map[string]int{
				"country = 'NA'": 63, "iata = ''": blanks, "iata is null": nulls, "icao >= 'K' and icao < 'L'": 4668, "country = 'US'": 12_579,
				"lat < 0": 7174, "elevation < 0": 27, "elevation < -1266": 0, "elevation <= -1266.00": 1, "icao is not null": 28_298,
			} {
				s.wantCount(tbl, clause, want, clause)
			}
			s.wantCount(tbl, "country = 'NA'", 63, "", s.predicate(tbl, "country", client.Equal, "NA"))
			var want []string
			for _, r := range records {
				if nulls > 0 && r[1] == "" {
					r[1] = "NULL"
				}
				for _, k := range []int{5, 6} {
					v, err := strconv.ParseFloat(r[k], 64)
					if err != nil {
						s.Fatal(err)
					}
					r[k] = strconv.FormatFloat(v, 'g', -1, 64)
				}
				elevation, err := tbl.Schema().Column(4).ParseText(r[4])
				if err != nil {
					s.Fatal(err)
				}
				want = append(want, strings.Join([]string{r[0], r[1], r[2], r[3], tbl.Schema().Column(4).FormatText(elevation), r[5], r[6]}, " "))
			}
			records = readRecords(t, "airports.csv.gz")
			got := s.scan(tbl, client.ScanOptions{})
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				s.Errorf("%s: the rows aren't the file's", name)
			}
		}
		blank := sortedLines(s.nyala("", "table", "scan", "blank", "--format", "csv").out)
		again := sortedLines(s.nyala("", "table", "scan", "again", "--format", "csv").out)
		if len(blank) != 28_298 || !slices.Equal(blank, again) {
			s.Errorf("%d lines came back as %d other ones", len(blank), len(again))
		}
		ranges := s.open("ranges")
		tablets, err := s.cl.Tablets(s.Context(), ranges)
		if err != nil || len(tablets) != 3 {
			s.Fatal(len(tablets), err)
		}
		if n, err := ranges.Count(s.Context(), client.ScanOptions{TabletID: tablets[1].ID}); err != nil || n != 4668 {
			s.Errorf("the tablet of K holds %d rows, %v", n, err)
		}
	})
}

// TestMoneyAndOldDates is the other half of trial T58: exact sums of decimals, dates before 1970, times that come twice.
func TestMoneyAndOldDates(t *testing.T) {
	stocks, vitals, glucose := readRecords(t, "stocks.csv"), readRecords(t, "marriages.csv"), readRecords(t, "glucose.csv.gz")
	inStates(t, func(s state) {
		s.ok("table", "create", "stocks", "--replicas", "1", "--columns", "symbol string, day date, price decimal(9,2)", "--primary_key", "symbol,day", "--hash", "symbol:2")
		text := "symbol,day,price\n"
		for _, r := range stocks {
			day, err := time.Parse("Jan 2 2006", r[1])
			if err != nil {
				t.Fatal(err)
			}
			text += r[0] + "," + day.Format(time.DateOnly) + "," + r[2] + "\n"
		}
		s.load("stocks", text)
		s.ok("table", "create", "vitals", "--replicas", "1", "--columns", "y date, marriages int32 null, divorces int32 null, population int32", "--primary_key", "y")
		tbl := s.open("vitals")
		for _, r := range vitals {
			row := []any{r[0] + "-01-01"}
			for _, cell := range r[1:4] {
				if n, err := strconv.Atoi(cell); err == nil {
					row = append(row, n)
				} else {
					row = append(row, nil)
				}
			}
			s.insert(tbl, row...)
		}
		for _, name := range []string{"inserted", "upserted"} {
			s.ok("table", "create", name, "--replicas", "1", "--columns", "ts unixtime_micros, glucose int16", "--primary_key", "ts")
		}
		r := s.nyala(readData(t, "glucose.csv.gz"), "table", "load", "inserted", "-")
		if r.code != 4 || !strings.Contains(r.err, "3 rejected (3 already present)") {
			t.Errorf("insert: exit code %d, %s", r.code, r.err)
		}
		s.load("upserted", readData(t, "glucose.csv.gz"), "--op", "upsert")
	}, func(s state) {
		for symbol, want := range map[string]int{"GOOG": 68, "MSFT": 123, "AMZN": 123, "IBM": 123, "AAPL": 123} {
			tbl := s.open("stocks")
			s.wantCount(tbl, symbol, want, "symbol = '"+symbol+"'", s.predicate(tbl, "symbol", client.Equal, symbol))
		}
		var sum, least, most int64 = 0, 1 << 30, 0
		s.scanEach(s.open("stocks"), client.ScanOptions{}, func(value func(string) client.Value) {
			cents := value("price").Int()
			sum, least, most = sum+cents, min(least, cents), max(most, cents)
		})
		if sum != 5_641_120 || least != 597 || most != 70_700 {
			s.Errorf("prices from %d to %d cents, %d in all", least, most, sum)
		}
		said := int64(0)
		for _, price := range strings.Fields(s.nyala("", "table", "scan", "stocks", "--columns", "price", "--format", "csv").out)[1:] {
			cents, err := strconv.ParseInt(strings.Replace(price, ".", "", 1), 10, 64)
			if err != nil {
				s.Fatal(err)
			}
			said += cents
		}
		if said != sum {
			s.Errorf("by the command line prices are %d cents in all", said)
		}
		old := s.open("vitals")
		s.wantCount(old, "before 1970", 103, "y < '1970-01-01'", s.predicate(old, "y", client.Less, "1970-01-01"))
		s.wantCount(old, "NULL", 4, "marriages is null", s.predicate(old, "marriages", client.IsNull, nil))
		s.wantCount(old, "NULL", 4, "divorces is null", s.predicate(old, "divorces", client.IsNull, nil))
		s.wantTable(old, s.rows(old)...)
		if rows := s.rows(old); len(rows) != 145 || rows[0] != "1867-01-01 357000 10000 36970000" {
			s.Errorf("%d rows, the first %q", len(rows), rows[0])
		}
		firsts, lasts := map[string]string{}, map[string]string{}
		for _, r := range glucose {
			if _, ok := firsts[r[0]]; !ok {
				firsts[r[0]] = r[1]
			}
			lasts[r[0]] = r[1]
		}
		for name, want := range map[string]map[string]string{"inserted": firsts, "upserted": lasts} {
			s.wantCount(s.open(name), name, 52_278, "glucose > 0")
			s.wantTable(s.open(name), s.rows(s.open(name))...)
			for _, row := range s.scan(s.open(name), client.ScanOptions{}) {
				ts, value, _ := strings.Cut(row, " ")
				if want[ts] != value {
					s.Errorf("%s: at %s it was %s, want %s", name, ts, value, want[ts])
				}
			}
		}
	})
}
