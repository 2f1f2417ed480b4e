package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/status"
)

// handOver is how long a tablet may take to be led elsewhere, and to be written to there, after its leader's clock has jumped:
// three heartbeat intervals.
const handOver = 3 * 500 * time.Millisecond

// TestClockJumps makes the clock of the server that leads most wrong while rows are written: by 40 years, by more and by less
// than the threshold, and back (T02). Nothing of it may reach a log, the first write there is refused, writes go on elsewhere,
// no server ends, and the server comes back by itself once its clock is right.
func TestClockJumps(t *testing.T) {
	c := newCluster(t, 3, mockClocks...)
	r := newClockRig(t, c, 4)
	r.knowAll()
	loads, stop := runLoads(t, r.cl, r.tbl, 2)
	defer func() { _ = stop() }()
	for _, offset := range []string{"40y", "901s", "899s", "-3600s"} {
		t.Run(offset, func(t *testing.T) {
			r.T = t
			victim, led := r.leadsMost()
			var web string
			for _, s := range tabletServers(t, c) {
				if s.RPC == victim {
					web = s.Web
				}
			}
			if err := r.writeAt(victim, led[0]); err != nil {
				t.Fatalf("before the jump: %v", err)
			}
			r.mock(victim, "--offset", offset)
			jumped := time.Now()
			err := r.writeAt(victim, led[0])
			if code := status.CodeOf(err); code != status.Clock && code != status.NotTheLeader && code != status.ServiceUnavailable {
				t.Errorf("the first write after the jump: %v", err)
			}
			until(t, 30*time.Second, "its tablets are led elsewhere", func() bool {
				now := r.leads()
				elsewhere := 0
				for addr, tablets := range now {
					if addr != victim {
						elsewhere += len(tablets)
					}
				}
				return len(now[victim]) == 0 && elsewhere >= r.tbl.Info().Tablets
			})
			took := time.Since(jumped)
			t.Logf("led elsewhere after %v", took.Round(time.Millisecond))
			if took > handOver {
				t.Errorf("its tablets were led elsewhere after %v, more than %v", took, handOver)
			}
			before := r.cl.LatestTimestamp()
			until(t, handOver, "writes go on", func() bool { return r.cl.LatestTimestamp() > before })
			fencedShows(t, r, victim, web)
			r.noBadStamps()

			r.mock(victim, "--offset", "0")
			right := time.Now()
			r.trusted(victim, 30*time.Second)
			until(t, 10*time.Second, "it is ready again", func() bool { code, _ := webPage(t, web, "/readyz"); return code == 200 })
			t.Logf("trusted again %v after it was set right", time.Since(right).Round(100*time.Millisecond))
			r.noBadStamps()
		})
	}
	r.T = t
	r.sameProcesses()
	r.rowsAreRight(loads, stop)
	checkHealthy(t, c)
}

// fencedShows looks for a fenced clock everywhere where an operator would.
func fencedShows(t *testing.T, r *clockRig, addr, web string) {
	t.Helper()
	until(t, 10*time.Second, "it is fenced", func() bool { return getClock(t, addr).GetState() == "fenced" })
	if code, text := webPage(t, web, "/healthz"); code != 200 || !strings.Contains(text, "clock: fenced: ") {
		t.Errorf("/healthz: %d\n%s", code, text)
	}
	if code, text := webPage(t, web, "/readyz"); code != 503 || !strings.Contains(text, "clock: fenced: ") {
		t.Errorf("/readyz: %d\n%s", code, text)
	}
	if _, text := webPage(t, web, "/metrics"); !strings.Contains(text, "\nclock_fenced 1\n") {
		t.Error("/metrics: clock_fenced isn't 1")
	}
	masters := strings.Join(r.c.MasterAddresses(), ",")
	ksck := nyala(t, "", "--masters", masters, "cluster", "ksck")
	if want := fmt.Sprintf("! clocks: tablet server %s gives no timestamps out: fenced: ", addr); ksck.code != 5 || !strings.Contains(ksck.out, want) {
		t.Errorf("ksck ends with %d and doesn't say %q:\n%s", ksck.code, want, ksck.out)
	}
	if show := nyala(t, "", "--masters", masters, "cluster", "clock"); show.code != 0 || !strings.Contains(show.out, "fenced") {
		t.Errorf("cluster clock: %+v", show)
	}
}

// checkHealthy shows that ksck finds nothing wrong, once elections are over.
func checkHealthy(t *testing.T, c *localcluster.Cluster) {
	t.Helper()
	var last result
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if last = nyala(t, "", "--masters", strings.Join(c.MasterAddresses(), ","), "cluster", "ksck"); last.code == 0 {
			return
		}
	}
	t.Errorf("ksck: exit code %d\n%s", last.code, last.out)
}

// TestRestartWithClockAhead starts a server again with its clock 40 years ahead: it comes up, fenced, follows, and gives out
// nothing, and it is well after another start with a clock that is right.
func TestRestartWithClockAhead(t *testing.T) {
	c := newCluster(t, 3, mockClocks...)
	r := newClockRig(t, c, 2)
	r.knowAll()
	loads, stop := runLoads(t, r.cl, r.tbl, 2)
	defer func() { _ = stop() }()
	addr, _ := r.leadsMost()
	var s localcluster.Server
	for _, other := range tabletServers(t, c) {
		if other.RPC == addr {
			s = other
		}
	}
	// A mark must be on disk for a start to be judged by.
	until(t, 20*time.Second, "the clock's mark is on disk", func() bool { return getClock(t, addr).GetMark() != 0 })
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.Pid))
	if err != nil {
		t.Skipf("the server's flags can't be read: %v", err)
	}
	if err := c.Kill(s.Name); err != nil {
		t.Fatal(err)
	}
	line := strings.Split(strings.TrimSuffix(string(args), "\x00"), "\x00")
	cmd := exec.Command(line[0], append(line[1:], "--mock_clock_offset=40y")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	conn := dialServer(t, addr)
	until(t, 20*time.Second, "it answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := nyalav1.NewServerServiceClient(conn).GetStatus(ctx, &nyalav1.GetStatusRequest{})
		return err == nil
	})
	k := getClock(t, addr)
	if k.GetState() != "fenced" || !strings.Contains(k.GetReason(), "jumped before this start") {
		t.Errorf("its clock: %v", k)
	}
	if code, text := webPage(t, s.Web, "/healthz"); code != 200 || !strings.Contains(text, "clock: fenced: ") {
		t.Errorf("/healthz: %d\n%s", code, text)
	}
	// It follows: it applies what is written elsewhere meanwhile.
	at := r.cl.LatestTimestamp()
	until(t, 20*time.Second, "it follows", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		resp, err := nyalav1.NewTabletAdminServiceClient(conn).ListTablets(ctx, &nyalav1.ListTabletsRequest{})
		if err != nil || len(resp.GetReplicas()) == 0 {
			return false
		}
		for _, rep := range resp.GetReplicas() {
			if rep.GetRole() == nyalav1.Role_ROLE_LEADER || rep.GetAppliedTimestamp() < uint64(at) {
				return false
			}
		}
		return true
	})
	r.noBadStamps()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := c.Start(t.Context(), s.Name); err != nil {
		t.Fatal(err)
	}
	r.trusted(addr, 30*time.Second)
	r.noBadStamps()
	r.rowsAreRight(loads, stop)
	checkHealthy(t, c)
}

// TestSnapshots reads at snapshots in the past, a little ahead, far ahead, at 0 and at the largest numbers (T06): what can be
// served is right, what can't is refused at once, and the clock stays where it was.
func TestSnapshots(t *testing.T) {
	c := newCluster(t, 1)
	cl := connect(t, c)
	tbl, err := cl.CreateTable(t.Context(), client.CreateTableOptions{
		Name: "t", PrimaryKey: []string{"k"}, Replicas: 1,
		Columns: []client.Column{{Name: "k", Type: client.Int32}, {Name: "v", Type: client.Int32, Nullable: true}},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := cl.NewSession(client.SessionOptions{})
	write := func(op *client.Operation, v int) client.Timestamp {
		t.Helper()
		if err := errors.Join(op.Set("k", 1), op.Set("v", v)); err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		return s.LastTimestamp()
	}
	t1 := write(tbl.NewInsert(), 10)
	write(tbl.NewUpdate(), 20)
	read := func(at client.Timestamp, deadline time.Duration) (int64, error) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		sc, err := tbl.Scan(ctx, client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: at})
		if err != nil {
			return 0, err
		}
		defer sc.Close()
		b, err := sc.Next(ctx)
		if err != nil {
			return 0, err
		}
		defer b.Release()
		v := int64(int32(binary.LittleEndian.Uint32(b.Record.Column(1).Data().Buffers()[1].Bytes())))
		return v, nil
	}
	ahead := func(d time.Duration) client.Timestamp { return hybridtime.FromTime(time.Now().Add(d)) }

	if v, err := read(t1+1, 10*time.Second); v != 10 || err != nil {
		t.Errorf("just after the insert: %d, %v", v, err)
	}
	began := time.Now()
	v, err := read(ahead(3*time.Second), 10*time.Second)
	if took := time.Since(began); v != 20 || err != nil || took < 2900*time.Millisecond || took > 4*time.Second {
		t.Errorf("3 s ahead, with 10 s: %d, %v after %v", v, err, took)
	}
	for try := 1; ; try++ { // a busy machine may be late once
		began = time.Now()
		_, err = read(ahead(3*time.Second), time.Second)
		took := time.Since(began)
		if client.CodeOf(err) == client.CodeTimedOut && took <= 1200*time.Millisecond {
			break
		}
		if client.CodeOf(err) != client.CodeTimedOut || try == 3 {
			t.Errorf("3 s ahead, with 1 s: %v after %v", err, took)
			break
		}
	}
	for _, at := range []client.Timestamp{ahead(time.Hour), math.MaxInt64, math.MaxUint64} {
		began = time.Now()
		_, err = read(at, 10*time.Second)
		if took := time.Since(began); client.CodeOf(err) != status.InvalidSnapshot || took > time.Second {
			t.Errorf("at %s: %v after %v", at, err, took)
		}
	}
	tablets, err := cl.Tablets(t.Context(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	_, err = nyalav1.NewTabletServiceClient(dialServer(t, tabletServers(t, c)[0].RPC)).Scan(t.Context(), &nyalav1.ScanRequest{
		Target: &nyalav1.ScanRequest_NewScan{NewScan: &nyalav1.NewScan{
			TabletId: tablets[0].ID, ReadMode: nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT, SnapshotTimestamp: new(uint64(0)), CountOnly: true,
		}},
	})
	wantError(t, "at 0", status.FromGRPC(err), status.InvalidSnapshot, "0")

	if off := time.Since(write(tbl.NewUpsert(), 30).Time()).Abs(); off > time.Second {
		t.Errorf("the next write is %v from the wall clock", off)
	}
}

// TestCausality writes to tables on two servers, the first of which is 5 s ahead (T07): whatever a client, or one that it told,
// writes after it has seen something gets a higher timestamp, and a snapshot at that shows both.
func TestCausality(t *testing.T) {
	c := newCluster(t, 2, mockClocks...)
	cl := connect(t, c)
	var early, late *client.Table // on the server ahead, and on the other
	servers := tabletServers(t, c)
	for i := 0; early == nil || late == nil; i++ {
		if i == 10 {
			t.Fatal("ten tables of one replica all came to the same server")
		}
		tbl := numbersTable(t, cl, fmt.Sprint("t", i), 1, 1)
		tablets, err := cl.Tablets(t.Context(), tbl)
		if err != nil {
			t.Fatal(err)
		}
		if tablets[0].Replicas[0].Address == servers[0].RPC {
			early = tbl
		} else {
			late = tbl
		}
	}
	if res := nyala(t, "", "clock", "mock", "--server", servers[0].RPC, "--offset", "5s"); res.code != 0 {
		t.Fatalf("%+v", res)
	}
	insert := func(cl *client.Client, tbl *client.Table, id int64) client.Timestamp {
		t.Helper()
		s := cl.NewSession(client.SessionOptions{})
		op := tbl.NewInsert()
		if err := op.Set("id", id); err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
		return s.LastTimestamp()
	}
	a := insert(cl, early, 1)
	if ahead := time.Until(a.Time()); ahead < 3*time.Second {
		t.Fatalf("the first write is %v ahead: its server's clock should be 5 s ahead", ahead)
	}
	b := insert(cl, late, 1)
	if b <= a {
		t.Errorf("the same client's next write: %s, not above %s", b, a)
	}

	second := connect(t, c)
	open := func(cl *client.Client, tbl *client.Table) *client.Table {
		t.Helper()
		tbl, err := cl.OpenTable(t.Context(), tbl.Name())
		if err != nil {
			t.Fatal(err)
		}
		return tbl
	}
	rows, err := readAll(t.Context(), open(second, early), client.ScanOptions{})
	if err != nil || len(rows) != 1 {
		t.Fatalf("%v, %v", rows, err)
	}
	b = insert(second, open(second, late), 2)
	if b <= a {
		t.Errorf("a write after a scan: %s, not above %s", b, a)
	}
	third := connect(t, c)
	third.ObserveTimestamp(second.LatestTimestamp())
	b = insert(third, open(third, late), 3)
	if b <= a {
		t.Errorf("a write of a client that was told: %s, not above %s", b, a)
	}
	for tbl, want := range map[*client.Table]uint64{early: 1, late: 3} {
		n, err := tbl.Count(t.Context(), client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: b + 1})
		if n != want || err != nil {
			t.Errorf("table %s at the last write: %d rows, %v; want %d", tbl.Name(), n, err, want)
		}
	}
}
