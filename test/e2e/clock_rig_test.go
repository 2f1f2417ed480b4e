package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/status"
)

// mockClocks are the flags of tablet servers whose clocks a test may make wrong.
var mockClocks = []string{"--time_source=mock", "--unlock_unsafe_flags", "--wall_clock_jump_detection=enabled"}

// clockRig is a cluster whose clocks are made wrong while rows are written.
type clockRig struct {
	*testing.T
	c      *localcluster.Cluster
	cl     *client.Client
	tbl    *client.Table
	pids   map[string]int
	direct int64 // ids of writes that a test makes by itself
	acked  []int64
}

func newClockRig(t *testing.T, c *localcluster.Cluster, buckets int) *clockRig {
	r := &clockRig{T: t, c: c, cl: connect(t, c), pids: map[string]int{}, direct: 1 << 40}
	r.tbl = numbersTable(t, r.cl, "numbers", buckets, 3)
	all, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		r.pids[s.Name] = s.Pid
	}
	return r
}

// dialServer returns a connection to one server, for what is asked of a server alone.
func dialServer(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// until waits for a condition.
func until(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v in vain: %s", limit, what)
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// leads returns the tablets that each server leads, by its own word, by RPC address.
func (r *clockRig) leads() map[string][]string {
	r.Helper()
	led := map[string][]string{}
	for _, s := range tabletServers(r.T, r.c) {
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
		resp, err := nyalav1.NewTabletAdminServiceClient(dialServer(r.T, s.RPC)).ListTablets(ctx, &nyalav1.ListTabletsRequest{})
		cancel()
		if err != nil {
			continue
		}
		for _, rep := range resp.GetReplicas() {
			if rep.GetRole() == nyalav1.Role_ROLE_LEADER {
				led[s.RPC] = append(led[s.RPC], rep.GetTabletId())
			}
		}
	}
	return led
}

// leadsMost returns the server that leads the most tablets, and these.
func (r *clockRig) leadsMost() (addr string, tablets []string) {
	r.Helper()
	until(r.T, 20*time.Second, "every tablet has a leader", func() bool {
		n := 0
		addr, tablets = "", nil
		for a, led := range r.leads() {
			if n += len(led); len(led) > len(tablets) {
				addr, tablets = a, led
			}
		}
		return n >= r.tbl.Info().Tablets
	})
	return addr, tablets
}

// idIn returns a new id whose row belongs to the tablet.
func (r *clockRig) idIn(tablet string) int64 {
	r.Helper()
	all, err := r.cl.Tablets(r.Context(), r.tbl)
	if err != nil {
		r.Fatal(err)
	}
	for _, tb := range all {
		for tb.ID == tablet {
			r.direct++
			cell := binary.LittleEndian.AppendUint64(nil, uint64(r.direct))
			key := r.tbl.PartitionSchema().PartitionKey(r.tbl.Schema(), func(int) []byte { return cell }, nil)
			if bytes.Compare(key, tb.PartitionKeyStart) >= 0 && (len(tb.PartitionKeyEnd) == 0 || bytes.Compare(key, tb.PartitionKeyEnd) < 0) {
				return r.direct
			}
		}
	}
	r.Fatalf("no tablet %s", tablet)
	return 0
}

// writeAt writes one row at one server, which is asked once.
func (r *clockRig) writeAt(addr, tablet string) error {
	r.Helper()
	id := r.idIn(tablet)
	row := []byte{1, 3, 2} // INSERT, both columns set, the second NULL
	row = binary.LittleEndian.AppendUint64(row, uint64(id))
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	_, err := nyalav1.NewTabletServiceClient(dialServer(r.T, addr)).Write(ctx, &nyalav1.WriteRequest{
		TabletId: tablet, RowOperations: &nyalav1.RowOperations{Rows: row},
	})
	if err == nil {
		r.acked = append(r.acked, id)
	}
	return status.FromGRPC(err)
}

// mock lays faults over a server's clock, by the command line.
func (r *clockRig) mock(addr string, args ...string) {
	r.Helper()
	if res := nyala(r.T, "", append([]string{"clock", "mock", "--server", addr}, args...)...); res.code != 0 {
		r.Fatalf("clock mock %v: %+v", args, res)
	}
}

func getClock(t *testing.T, addr string) *nyalav1.GetClockResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	resp, err := nyalav1.NewServerServiceClient(dialServer(t, addr)).GetClock(ctx, &nyalav1.GetClockRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// knowAll waits until every tablet server has measured the clocks of all others.
func (r *clockRig) knowAll() {
	r.Helper()
	until(r.T, 20*time.Second, "all servers know each other's clocks", func() bool {
		for _, s := range tabletServers(r.T, r.c) {
			peers := getClock(r.T, s.RPC).GetPeers()
			if len(peers) != len(r.pids)-1 {
				return false
			}
			for _, p := range peers {
				if !p.GetKnown() {
					return false
				}
			}
		}
		return true
	})
}

// trusted waits until a server's clock gives timestamps out.
func (r *clockRig) trusted(addr string, limit time.Duration) {
	r.Helper()
	until(r.T, limit, "the clock of "+addr+" is trusted again", func() bool { return getClock(r.T, addr).GetState() == "open" })
}

// noBadStamps shows that no log holds a timestamp more than 10 s past the time, that each tablet's rise with the index, and
// that nobody was told of one that the logs can't have.
func (r *clockRig) noBadStamps() {
	r.Helper()
	for _, s := range tabletServers(r.T, r.c) {
		stream, err := nyalav1.NewServerServiceClient(dialServer(r.T, s.RPC)).DumpWAL(r.Context(), &nyalav1.DumpWALRequest{})
		if err != nil {
			r.Fatal(err)
		}
		last := map[string]uint64{}
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				r.Fatalf("dump the log of %s: %v", s.Name, err)
			}
			for _, e := range resp.GetEntries() {
				r.notAhead(fmt.Sprintf("%s: entry %v of tablet %s", s.Name, e.GetOpId(), e.GetTabletId()), e.GetTimestamp())
				if ts := e.GetTimestamp(); ts != 0 {
					if ts <= last[e.GetTabletId()] {
						r.Fatalf("%s: tablet %s: timestamp %s at %v doesn't rise", s.Name, e.GetTabletId(), hybridtime.Timestamp(ts), e.GetOpId())
					}
					last[e.GetTabletId()] = ts
				}
			}
		}
		if len(last) == 0 {
			r.Fatalf("the log of %s holds no timestamps", s.Name)
		}
		k := getClock(r.T, s.RPC)
		r.notAhead(s.Name+": latest", k.GetLatest())
		r.notAhead(s.Name+": mark", k.GetMark())
		r.notAhead(s.Name+": promise", k.GetPromise())
	}
	r.notAhead("the client", uint64(r.cl.LatestTimestamp()))
}

func (r *clockRig) notAhead(what string, ts uint64) {
	r.Helper()
	if ahead := time.Until(hybridtime.Timestamp(ts).Time()); ahead > 10*time.Second {
		r.Fatalf("%s has timestamp %s, which is %v ahead", what, hybridtime.Timestamp(ts), ahead)
	}
}

// sameProcesses shows that no server ended.
func (r *clockRig) sameProcesses() {
	r.Helper()
	all, err := r.c.Servers()
	if err != nil {
		r.Fatal(err)
	}
	for _, s := range all {
		if s.Pid != r.pids[s.Name] {
			r.Errorf("%s is %s with process %d, it was %d", s.Name, s.State, s.Pid, r.pids[s.Name])
		}
	}
}

// rowsAreRight stops the loads and shows that exactly the acknowledged rows are there, on every server.
func (r *clockRig) rowsAreRight(loads []*load, stop func() error) {
	r.Helper()
	if err := stop(); err != nil {
		r.Fatal(err)
	}
	rows, err := readAll(r.Context(), r.tbl, client.ScanOptions{})
	if err != nil {
		r.Fatal(err)
	}
	for _, id := range r.acked {
		if _, ok := rows[id]; !ok {
			r.Errorf("row %d, which a server acknowledged, is lost", id)
		}
	}
	written := map[int64]string{}
	for id, name := range rows {
		if id < 1<<40 {
			written[id] = name
		}
	}
	checkRows(r.T, "leaders", written, loads)
	if extra := len(rows) - len(written) - len(r.acked); extra != 0 {
		r.Errorf("%d rows that no server acknowledged", extra)
	}
	r.Logf("%d rows", len(rows))
}

// webPage returns what a page of a server says.
func webPage(t *testing.T, web, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+web+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var b strings.Builder
	if _, err := io.Copy(&b, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, b.String()
}
