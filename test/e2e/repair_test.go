package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/wal"
)

// TestRepair leaves entries forty years ahead at the end of the log of a tablet's leader that was killed, as a clock that had
// jumped would have, and runs the example of docs/repair.md: check finds them, trim takes them out, and the server comes back with
// every tablet healthy and every row. The logs are without fault before and after.
func TestRepair(t *testing.T) {
	c := newCluster(t, 3)
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 2, 3)
	before, during := &load{}, &load{first: 1e9, next: 1e9}
	insertRows(t, cl, tbl, before, 500)
	all, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		nyala(t, "", "wal", "check", "--server", s.RPC).want(t, "check of "+s.Name, 0, "")
	}
	tablet, victim := killLeader(t, c, cl, tbl)
	insertRows(t, cl, tbl, during, 100) // the others go on
	folder := filepath.Join(c.Dir(), victim)
	after := plantOrphans(t, folder, tablet)

	backup := filepath.Join(t.TempDir(), "orphans.wal")
	env := []string{"NYALA_MASTERS=" + strings.Join(c.MasterAddresses(), ","), "NYALA_LOCAL_DIR=" + c.Dir(), "PATH=" + binDir + ":" + os.Getenv("PATH")}
	inPlace := strings.NewReplacer("~/.nyala/local", c.Dir(), "tserver-2", victim, "0123456789abcdef0123456789abcdef", tablet,
		"2026-03-01T12:00:00.000000Z", after, "orphans.wal", backup)
	for _, e := range examples(t, "../../docs/repair.md") {
		line := inPlace.Replace(e.line)
		r := runExample(t, env, line, e.code)
		t.Logf("$ %s\n%s%s", line, r.out, r.err)
		switch {
		case strings.HasPrefix(e.line, "nyala wal check") && e.code == 1:
			// What check says to do is what the example does.
			want := fmt.Sprintf("nyala wal trim --dir %s --tablet %s --after %s\n", folder, tablet, after)
			if !regexp.MustCompile(`(?m)^`+tablet+` +ahead +\d+\.\d+ +2 +not known `).MatchString(r.out) || !strings.Contains(r.out, want) {
				t.Errorf("check doesn't name the entries, or not what to do (%s)", want)
			}
		case strings.HasPrefix(e.line, "nyala wal trim") && !strings.Contains(r.out, backup):
			t.Errorf("trim doesn't name the backup")
		case strings.HasPrefix(e.line, "nyala wal dump") && strings.Count(r.out, tablet) != 3:
			t.Errorf("the backup doesn't hold the three entries")
		}
	}
	insertRows(t, cl, tbl, before, 100)
	checkEverywhere(t, c, cl, tbl, []*load{before, during})
	nyala(t, "", "wal", "check", "--dir", folder).want(t, "check of the repaired server", 0, "")
	nyala(t, "", "wal", "trim", "--dir", folder, "--tablet", tablet, "--after", after, "--yes").
		wantError(t, "trim of a running server", 1, "is in use by process ")
}

// TestOrphansReplaced shows that the same entries need no repair where the tablet has a leader elsewhere: its log replaces them.
func TestOrphansReplaced(t *testing.T) {
	c := newCluster(t, 3)
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 2, 3)
	rows := &load{}
	insertRows(t, cl, tbl, rows, 500)
	tablet, victim := killLeader(t, c, cl, tbl)
	insertRows(t, cl, tbl, rows, 100)
	folder := filepath.Join(c.Dir(), victim)
	plantOrphans(t, folder, tablet)
	if err := c.Start(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	insertRows(t, cl, tbl, rows, 100)
	checkEverywhere(t, c, cl, tbl, []*load{rows})
	nyala(t, "", "wal", "check", "--dir", folder).want(t, "check afterwards", 0, "")
}

// killLeader kills the server that leads the table's first tablet.
func killLeader(t *testing.T, c *localcluster.Cluster, cl *client.Client, tbl *client.Table) (tablet, name string) {
	t.Helper()
	tablets, err := cl.Tablets(t.Context(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range tablets[0].Replicas {
		for _, s := range servers {
			if r.Role == client.RoleLeader && s.UUID == r.ServerID {
				if err := c.Kill(s.Name); err != nil {
					t.Fatal(err)
				}
				return tablets[0].ID, s.Name
			}
		}
	}
	t.Fatalf("tablet %s has no leader: %+v", tablets[0].ID, tablets[0].Replicas)
	return "", ""
}

// insertRows inserts the load's next n rows, in one batch.
func insertRows(t *testing.T, cl *client.Client, tbl *client.Table, l *load, n int64) {
	t.Helper()
	s := cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	for id := l.next; id < l.next+n; id++ {
		op := tbl.NewInsert()
		if err := errors.Join(op.Set("id", id), op.Set("name", nameOf(id)), s.Apply(t.Context(), op)); err != nil {
			t.Fatal(err)
		}
	}
	rowErrs, err := s.Flush(t.Context())
	if err != nil || len(rowErrs) > 0 {
		t.Fatalf("insert rows from %d: %v, %v", l.next, err, rowErrs)
	}
	l.next += n
}

// example is a command line of a page, and the exit code that the page names.
type example struct {
	line string
	code int
}

// examples are the command lines in a page's blocks of shell.
func examples(t *testing.T, path string) []example {
	t.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []example
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for line := range strings.SplitSeq(strings.TrimSpace(block[1]), "\n") {
			e := example{line: line}
			if command, code, ok := strings.Cut(line, "# exits with "); ok {
				e.line = strings.TrimSpace(command)
				if _, err := fmt.Sscan(code, &e.code); err != nil {
					t.Fatalf("%s: %q: %v", path, line, err)
				}
			}
			all = append(all, e)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no examples", path)
	}
	return all
}

// runExample runs one command line of a page until it ends with the code: a cluster needs some moments after a server's start.
func runExample(t *testing.T, env []string, line string, code int) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		r := command(t, "", env, "bash", "-euo", "pipefail", "-c", line)
		if r.code == code {
			return r
		}
		if !strings.Contains(line, "ksck") || ctx.Err() != nil {
			t.Fatalf("%s: exit code %d, want %d\n%s%s", line, r.code, code, r.out, r.err)
		}
		pause(t, 200*time.Millisecond)
	}
}

// plantOrphans adds three entries to the end of a tablet's log on a stopped server, which led it: two forty years ahead, and
// one without a timestamp between them. It returns the last good timestamp.
func plantOrphans(t *testing.T, dir, tablet string) (after string) {
	t.Helper()
	s, err := wal.OpenBolt(wal.Config{Path: fs.WALPath(filepath.Join(dir, "wal"))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	groups := s.Groups()
	i := slices.IndexFunc(groups, func(g wal.Group) bool { return string(g.TabletID) == tablet })
	if i < 0 {
		t.Fatalf("%s holds no tablet %s", dir, tablet)
	}
	l := s.Log(groups[i].Number)
	last := l.LastOpID()
	var good hybridtime.Timestamp
	for i := l.Start().Index + 1; i <= last.Index; i++ {
		ts, err := l.Timestamp(i)
		if err != nil {
			t.Fatal(err)
		}
		good = max(good, ts)
	}
	far := hybridtime.FromTime(time.Now()).Add(40 * hybridtime.Year)
	entry := func(n ident.Index, data []byte) *raftpb.Entry {
		return &raftpb.Entry{
			Term: new(uint64(last.Term)), Index: new(uint64(last.Index + n)), Type: raftpb.EntryNormal.Enum(), Data: data,
		}
	}
	b := &wal.Batch{}
	b.Append(l.Number(), []*raftpb.Entry{
		entry(1, wal.EncodePayload(wal.KindNoop, far, nil)), entry(2, nil), entry(3, wal.EncodePayload(wal.KindNoop, far+1, nil)),
	})
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	return good.String()
}
