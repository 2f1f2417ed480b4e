package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestTableFile shows that what describe prints makes the same table again, with every type, defaults, comments, odd names, ranges and
// hashes of their own; and that statistics tell of a table's rows and files.
func TestTableFile(t *testing.T) {
	c := newCluster(t, 3)
	s := state{t, c, connect(t, c), 3}
	s.ok("table", "create", "first", "--columns", `id int64, "a, ""b""" string default 'x: "y"' comment 'it''s # text', day date, `+
		"c1 bool null, c2 int8 default -128, c3 int16 null, c4 int32 null, c5 float null, c6 double default 1e-300, c7 decimal(38,38) null, "+
		"c8 varchar(65535) null, c9 binary null, c10 unixtime_micros default '1848-03-15T09:23:59.764999Z', no string default 'null'",
		"--primary_key", "day,id", "--hash", "id:2:7", "--range", "day: [, '2013-01-01'), ['2013-01-01', '2014-01-01'] hash(id):3, ['2015-01-01', )")
	s.ok("table", "create", "plain", "--replicas", "1", "--columns", "k string", "--primary_key", "k")
	// What a description says of one table alone: its id and name. Columns have their ids in the order of creation.
	own := regexp.MustCompile(`(?m)^ *"?(id|name)"?: "?([0-9a-f]{32}|first|again|plain)"?,?$`)
	describe := func(table, format string) string {
		t.Helper()
		r := s.nyala("", "table", "describe", table, "--format", format)
		if r.code != 0 {
			t.Fatalf("describe %s: %s", table, r.err)
		}
		return r.out
	}
	for _, table := range []string{"first", "plain"} {
		for _, format := range []string{"yaml", "json"} {
			text := describe(table, format)
			if r := s.nyala(text, "table", "create", "again", "--file", "-"); r.code != 0 {
				t.Fatalf("create from %s: %s\n%s", format, r.err, text)
			}
			if got, want := own.ReplaceAllString(describe("again", format), "-"), own.ReplaceAllString(text, "-"); got != want {
				t.Errorf("%s became\n%s", want, got)
			}
			s.ok("table", "delete", "again")
		}
	}

	// The commands of the example's own text.
	readme, err := os.ReadFile("../../examples/flights/README.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile(`(?m)^    (nyala .*)$`).FindAllStringSubmatch(string(readme), -1)
	if len(commands) != 5 {
		t.Fatalf("examples/flights/README.md has %d commands", len(commands))
	}
	for _, m := range commands {
		if r := command(t, "", []string{"NYALA_MASTERS=" + strings.Join(c.MasterAddresses(), ","), "PATH=" + binDir + ":" + os.Getenv("PATH")}, "bash", "-c", m[1]); r.code != 0 {
			t.Fatalf("%s: exit code %d, %s", m[1], r.code, r.err)
		}
	}
	for _, server := range tabletServers(t, c) {
		if err := c.Stop(t.Context(), server.Name); err != nil { // which puts all rows into files
			t.Fatal(err)
		}
		if err := c.Start(t.Context(), server.Name); err != nil {
			t.Fatal(err)
		}
	}
	r := s.nyala("", "table", "statistics", "flights", "--format", "json")
	var said struct {
		Leaders  uint64 `json:"on_disk_size"`
		All      uint64 `json:"on_disk_size_all_replicas"`
		Rows     uint64 `json:"live_row_count"`
		Tablets  int    `json:"tablets"`
		Replicas int    `json:"replicas"`
		Silent   int    `json:"replicas_without_answer"`
	}
	if err := json.Unmarshal([]byte(r.out), &said); err != nil {
		t.Fatalf("statistics: %v, %s", err, r.err)
	}
	if said.Rows != 27_004 || said.Replicas != 3*said.Tablets || said.Silent != 0 || said.Leaders < 100_000 || said.All < 2*said.Leaders || said.All > 4*said.Leaders {
		t.Errorf("statistics %+v", said)
	}
	if r := s.nyala("", "table", "statistics", "flights"); !strings.Contains(r.out, "\nlive row count: 27,004\n") {
		t.Errorf("statistics: %s%s", r.out, r.err)
	}
}
