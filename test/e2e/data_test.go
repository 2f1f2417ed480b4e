package e2e

import (
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/cli"
	"github.com/nyaladb/nyala/internal/status"
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
				if r := s.inProcess("", "table", "count", name, "--where", clause); r.out != fmt.Sprintln(want) {
					s.Errorf("%s: %s: %s, %s, want %d", name, clause, r.out, r.err, want)
				}
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

// TestHostileStrings is the first half of trial T58: strings that broke programs, as keys, values, names and arguments.
func TestHostileStrings(t *testing.T) {
	var list []string
	if err := json.Unmarshal([]byte(readData(t, "strings.json")), &list); err != nil {
		t.Fatal(err)
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(list)))
	inStates(t, func(s state) {
		s.ok("table", "create", "strings", "--replicas", "1", "--columns", "s string, b binary, n int32", "--primary_key", "s",
			"--range", "s: [, 'M'), ['M', '\u0080'), ['\u0080', )")
		tbl := s.open("strings")
		twice := 0
		for n, text := range list {
			switch err := s.apply(tbl.NewInsert(), text, []byte(text), n); {
			case client.CodeOf(err) == status.AlreadyPresent:
				twice++
			case err != nil:
				t.Errorf("%q: %v", text, err)
			}
		}
		if twice != 4 {
			t.Errorf("%d strings came twice, want 4", twice)
		}
		s.nameTables(sorted)
		s.nameColumns(sorted)
	}, func(s state) {
		tbl := s.open("strings")
		first := map[string]int{}
		for n, text := range slices.Backward(list) {
			first[text] = n
		}
		got := []string{}
		s.scanEach(tbl, client.ScanOptions{}, func(value func(string) client.Value) {
			text := string(value("s").Bytes())
			if string(value("b").Bytes()) != text || int(value("n").Int()) != first[text] {
				s.Errorf("row %q holds %q and %d", text, value("b").Bytes(), value("n").Int())
			}
			got = append(got, text)
		})
		if len(got) != 481 || !slices.Equal(got, sorted) || got[0] != "" || !strings.HasPrefix(got[480], "\xf0\xa0\x9c\x8e") {
			s.Errorf("a scan has %d strings, not those of the file in the order of their bytes", len(got))
		}
		for _, text := range sorted {
			if rows := s.scan(tbl, client.ScanOptions{Columns: []string{"n"}, Predicates: []client.Predicate{s.predicate(tbl, "s", client.Equal, text)}}); len(rows) != 1 || rows[0] != fmt.Sprint(first[text]) {
				s.Errorf("s = %q: %q, want %d", text, rows, first[text])
			}
			clause := "s = '" + strings.ReplaceAll(text, "'", "''") + "'"
			if r := s.inProcess("", "table", "count", "strings", "--where", clause); r.out != "1\n" {
				s.Errorf("%s: %s%s", clause, r.out, r.err)
			}
		}
		s.wantCount(tbl, "all at once", 481, "s in ('"+strings.Join(strings.Split(strings.ReplaceAll(strings.Join(sorted, "\x00"), "'", "''"), "\x00"), "','")+"')")
		for _, format := range []string{"json", "ndjson", "table", "csv"} {
			r := s.nyala("", "table", "scan", "strings", "--format", format)
			if r.code != 0 || strings.Count(r.out, "\n") < 481 {
				s.Errorf("scan as %s: exit code %d, %s", format, r.code, r.err)
			}
			if format == "json" {
				var rows []struct {
					S string `json:"s"`
				}
				if err := json.Unmarshal([]byte(r.out), &rows); err != nil || len(rows) != 481 {
					s.Fatalf("scan as JSON: %d rows, %v", len(rows), err)
				}
				for i := range rows {
					if rows[i].S != sorted[i] {
						s.Errorf("row %d of the JSON is %q, want %q", i, rows[i].S, sorted[i])
					}
				}
			}
		}
		s.checkPages(sorted)
	})
}

// nameTables gives tables the names: each is made whole and can be used and deleted by its name, or is refused and isn't there.
func (s state) nameTables(names []string) {
	s.Helper()
	var made sync.Map
	work := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for name := range work {
				_, err := s.cl.CreateTable(s.Context(), client.CreateTableOptions{Name: name, Columns: []client.Column{{Name: "k", Type: client.Int32, Key: true}}, Replicas: 1})
				switch code := client.CodeOf(err); {
				case err == nil:
					made.Store(name, true)
				case code != status.InvalidArgument && code != status.InvalidSchema:
					s.Errorf("table %q: %v", name, err)
				}
			}
		})
	}
	for _, name := range names {
		if len(name) <= 256 {
			work <- name
		}
	}
	close(work)
	workers.Wait()
	list, err := s.cl.ListTables(s.Context(), "")
	if err != nil {
		s.Fatal(err)
	}
	var there []string
	for _, info := range list {
		if info.Name == "strings" {
			continue
		}
		there = append(there, info.Name)
		if _, ok := made.Load(info.Name); !ok || info.State != client.TableRunning {
			s.Errorf("table %q is there as %v", info.Name, info.State)
		}
	}
	if len(there) < len(names)*9/10 {
		s.Errorf("%d of %d strings are names", len(there), len(names))
	}
	s.checkPages(names)
	for i, name := range there {
		run := s.inProcess
		if i%20 == 0 {
			run = s.nyala // through the real program's arguments
		}
		// Behind -- a name may begin with a minus.
		if r := run("k\n7\n", "table", "load", "--input_format", "csv", "--", name, "-"); r.code != 0 {
			s.Errorf("load %q: exit code %d, %s", name, r.code, r.err)
		}
		if r := run("", "table", "count", "--", name); r.out != "1\n" {
			s.Errorf("count %q: exit code %d, %s%s", name, r.code, r.out, r.err)
		}
		if r := run("", "table", "delete", "--", name); r.code != 0 {
			s.Errorf("delete %q: exit code %d, %s", name, r.code, r.err)
		}
	}
	if list, err = s.cl.ListTables(s.Context(), ""); err != nil || len(list) != 1 {
		s.Errorf("%d tables are left, %v", len(list), err)
	}
}

// nameColumns makes tables whose columns have the names, and reads them through the client and the command line.
func (s state) nameColumns(names []string) {
	s.Helper()
	for n, part := range slices.Collect(slices.Chunk(names, 200)) {
		columns := []client.Column{{Name: "the key", Type: client.Int32, Key: true}}
		for _, name := range part {
			c := client.Column{Name: name, Type: client.String, Nullable: true}
			o := client.CreateTableOptions{Name: "refused", Columns: append(slices.Clone(columns[:1]), c), Replicas: 1}
			if len(name) > 256 || strings.ContainsRune(name, 0) || name == "" {
				_, err := s.cl.CreateTable(s.Context(), o)
				wantError(s.T, fmt.Sprintf("column %q", name), err, status.InvalidSchema, "name")
				continue
			}
			columns = append(columns, c)
		}
		table := fmt.Sprint("columns ", n)
		tbl, err := s.cl.CreateTable(s.Context(), client.CreateTableOptions{Name: table, Columns: columns, Replicas: 1})
		if err != nil {
			s.Fatal(err)
		}
		row := []any{1}
		for _, c := range columns[1:] {
			row = append(row, c.Name)
		}
		s.insert(tbl, row...)
		for _, c := range columns[1:] {
			quoted := `"` + strings.ReplaceAll(c.Name, `"`, `""`) + `"`
			r := s.inProcess("", "table", "scan", table, "--format", "ndjson", "--columns", quoted, "--where", quoted+" = '"+strings.ReplaceAll(c.Name, "'", "''")+"'")
			var got map[string]string
			if err := json.Unmarshal([]byte(r.out), &got); err != nil || got[c.Name] != c.Name || len(got) != 1 {
				s.Errorf("column %q: %q, %v, %s", c.Name, got, err, r.err)
			}
		}
		if r := s.nyala("", "table", "describe", table); r.code != 0 {
			s.Errorf("describe: %s", r.err)
		}
		s.ok("table", "delete", table)
	}
}

// checkPages shows that every server's metrics and pages can be read, and that no name stands on them as markup.
func (s state) checkPages(names []string) {
	s.Helper()
	servers, err := s.c.Servers()
	if err != nil {
		s.Fatal(err)
	}
	for _, server := range servers {
		for _, path := range []string{"/metrics", "/metrics?level=debug"} {
			_, body := get(s.T, "http://"+server.Web+path)
			p := expfmt.NewTextParser(model.UTF8Validation)
			if families, err := p.TextToMetricFamilies(strings.NewReader(body)); err != nil || len(families) < 50 {
				s.Errorf("%s%s: %d metrics, %v", server.Name, path, len(families), err)
			}
		}
		_, body := get(s.T, "http://"+server.Web+"/")
		for _, name := range names {
			if strings.ContainsAny(name, "<&") && strings.Contains(body, name) && name != "&" {
				s.Errorf("%s: the page has the name %q as it is", server.Name, name)
			}
		}
		if !strings.Contains(body, "</table>") {
			s.Errorf("%s: the page isn't whole: %.300s", server.Name, body)
		}
	}
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
		old := s.open("vitals")
		s.wantCount(old, "before 1970", 103, "y < '1970-01-01'", s.predicate(old, "y", client.Less, "1970-01-01"))
		s.wantCount(old, "NULL", 4, "marriages is null", s.predicate(old, "marriages", client.IsNull, nil))
		s.wantCount(old, "NULL", 4, "divorces is null", s.predicate(old, "divorces", client.IsNull, nil))
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
			for _, row := range s.scan(s.open(name), client.ScanOptions{}) {
				ts, value, _ := strings.Cut(row, " ")
				if want[ts] != value {
					s.Errorf("%s: at %s it was %s, want %s", name, ts, value, want[ts])
				}
			}
		}
	})
}
