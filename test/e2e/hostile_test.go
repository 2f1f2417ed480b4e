package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

// TestHostileStrings is the first half of trial T58: strings that broke programs, as keys, values, names and arguments.
func TestHostileStrings(t *testing.T) {
	var list []string
	if err := json.Unmarshal([]byte(readData(t, "strings.json")), &list); err != nil {
		t.Fatal(err)
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(list)))
	var tables []string              // named by the strings
	columns := map[string][]string{} // of tables, named by the strings
	markup := true                   // open the page of each table whose name could be markup: once, they are made by the same code after a restart
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
		tables = s.nameTables(sorted)
		columns = s.nameColumns(sorted)
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
		s.wantTables(append(slices.Sorted(maps.Keys(columns)), append(tables, "strings")...))
		s.checkPages(sorted)
		s.Run("browser", func(t *testing.T) { state{t, s.c, s.cl, s.replicas}.browse(newBrowser(t), tables, columns, markup) })
		markup = false
		s.useColumns(columns)
		tables = s.useTables(tables)
		s.wantTables(append(slices.Sorted(maps.Keys(columns)), append(tables, "strings")...))
	})
}

// wantTables shows that these tables are there, whole, and no others.
func (s state) wantTables(names []string) {
	s.Helper()
	list, err := s.cl.ListTables(s.Context(), "")
	if err != nil {
		s.Fatal(err)
	}
	var there []string
	for _, info := range list {
		there = append(there, info.Name)
		if info.State != client.TableRunning {
			s.Errorf("table %q is there as %v", info.Name, info.State)
		}
	}
	s.wantRows("the tables", there, names...)
}

// nameTables gives tables the names: each is made whole or is refused. It returns those that are made.
func (s state) nameTables(names []string) (made []string) {
	s.Helper()
	var mu sync.Mutex // guards made
	work := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for name := range work {
				_, err := s.cl.CreateTable(s.Context(), client.CreateTableOptions{Name: name, Columns: []client.Column{{Name: "k", Type: client.Int32, Key: true}}, Replicas: 1})
				switch code := client.CodeOf(err); {
				case err == nil:
					mu.Lock()
					made = append(made, name)
					mu.Unlock()
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
	if len(made) < len(names)*9/10 {
		s.Errorf("%d of %d strings are names", len(made), len(names))
	}
	slices.Sort(made)
	return made
}

// useTables writes to and reads from each table by its name, through the client and the command line. It deletes every other one and
// returns those that are left.
func (s state) useTables(names []string) (left []string) {
	s.Helper()
	for i, name := range names {
		run := s.inProcess
		if i%20 == 0 {
			run = s.nyala // through the real program's arguments
		}
		// Behind -- a name may begin with a minus.
		if r := run("k\n7\n", "table", "load", "--input_format", "csv", "--op", "upsert", "--", name, "-"); r.code != 0 {
			s.Errorf("load %q: exit code %d, %s", name, r.code, r.err)
		}
		if r := run("", "table", "count", "--", name); r.out != "1\n" {
			s.Errorf("count %q: exit code %d, %s%s", name, r.code, r.out, r.err)
		}
		s.wantRows(name, s.rows(s.open(name)), "7")
		if i%2 == 0 {
			left = append(left, name)
		} else if r := run("", "table", "delete", "--", name); r.code != 0 {
			s.Errorf("delete %q: exit code %d, %s", name, r.code, r.err)
		}
	}
	return left
}

// nameColumns makes tables whose columns have the names, with one row that has them as values too, or is refused those. It returns the
// columns by table.
func (s state) nameColumns(names []string) map[string][]string {
	s.Helper()
	named := map[string][]string{}
	for n, part := range slices.Collect(slices.Chunk(names, 200)) {
		columns := []client.Column{{Name: "the key", Type: client.Int32, Key: true}}
		for _, name := range part {
			c := client.Column{Name: name, Type: client.String, Nullable: true, Comment: name}
			o := client.CreateTableOptions{Name: "refused", Columns: append(slices.Clone(columns[:1]), c), Replicas: 1}
			if len(name) > 256 || strings.ContainsRune(name, 0) || name == "" {
				o.Columns[1].Comment = ""
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
			named[table] = append(named[table], c.Name)
		}
		s.insert(tbl, row...)
	}
	return named
}

// useColumns asks for each column by its name, in projections and predicates, through the client and the command line.
func (s state) useColumns(columns map[string][]string) {
	s.Helper()
	for table, names := range columns {
		tbl := s.open(table)
		for _, name := range names {
			quoted := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
			r := s.inProcess("", "table", "scan", table, "--format", "ndjson", "--columns", quoted, "--where", quoted+" = '"+strings.ReplaceAll(name, "'", "''")+"'")
			var got map[string]string
			if err := json.Unmarshal([]byte(r.out), &got); err != nil || got[name] != name || len(got) != 1 {
				s.Errorf("column %q: %q, %v, %s", name, got, err, r.err)
			}
			s.wantRows(name, s.scan(tbl, client.ScanOptions{Columns: []string{name}, Predicates: []client.Predicate{s.predicate(tbl, name, client.Equal, name)}}), name)
		}
		if r := s.nyala("", "table", "describe", table); r.code != 0 {
			s.Errorf("describe: %s", r.err)
		}
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

// browse opens the pages on which names stand in a browser: each stands there as it is, and none does anything. Of single tables it opens
// those of every eighth name, with their tablets', and where markup is set of each that could be markup.
func (s state) browse(b *browser, tables []string, columns map[string][]string, markup bool) {
	s.Helper()
	if b.open("data:text/html,<p><script>console.log(1)</script>"); len(b.ran) != 1 {
		s.Fatalf("the browser doesn't tell of scripts: %q", b.ran)
	}
	servers, err := s.c.Servers()
	if err != nil {
		s.Fatal(err)
	}
	master, tserver := "http://"+servers[0].Web+"/", "http://"+servers[1].Web+"/"
	for url, title := range map[string]string{master: "nyala-master", tserver: "nyala-tserver"} {
		page := b.wantPlain(url, title, "")
		for _, name := range tables {
			if !slices.Contains(page.Cells, shown(name)) {
				s.Errorf("%s doesn't show %q", url, name)
			}
		}
	}
	ids := map[string]string{}
	list, err := s.cl.ListTables(s.Context(), "")
	if err != nil {
		s.Fatal(err)
	}
	for _, info := range list {
		ids[info.Name] = info.ID
	}
	for i, name := range append(slices.Sorted(maps.Keys(columns)), tables...) {
		if i >= len(columns) && i%8 != 0 && (!markup || !strings.Contains(name, "<")) {
			continue
		}
		page := b.wantPlain(master+"table?id="+ids[name], "nyala-master: table "+name, "Back")
		if page.Cells[1] != shown(name) {
			s.Errorf("the page of table %q has the name %q", name, page.Cells[1])
		}
		rows := slices.Collect(slices.Chunk(page.Cells[len(page.Cells)-7*(len(columns[name])+2):], 7)) // columns, the key first, and one tablet
		for i, column := range columns[name] {
			if row := rows[i+1]; row[0] != shown(column) || row[6] != shown(column) {
				s.Errorf("the page of table %q has %q for its column %q and that comment", name, row, column)
			}
		}
		link := page.Links[slices.IndexFunc(page.Links, func(l string) bool { return strings.Contains(l, "/tablet?id=") })]
		if i%8 == 0 {
			_, tablet, _ := strings.Cut(link, "?id=")
			page := b.wantPlain(link, "nyala-tserver: tablet "+tablet+" of "+name, "Back")
			if page.Cells[1] != shown(name) {
				s.Errorf("the page of a tablet of table %q has the name %q", name, page.Cells[1])
			}
		}
	}
}
