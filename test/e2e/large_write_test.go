package e2e

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestLargeWrite is the rest of trial T46: one write of 799 rows with a cell of 65,536 bytes each, just under the limit of a
// message, commits on all three replicas and survives kill -9 of all servers. One of the very size of the limit, whose log
// entry would fit into no message between servers, is refused, and the tablet goes on.
func TestLargeWrite(t *testing.T) {
	const rows = 799
	full := strings.Repeat("v", schema.MaxCellSize)
	inStatesOn(t, 3, func(s state) {
		tbl := s.create("large", "k int32, v string", "k")
		ses := s.cl.NewSession(client.SessionOptions{Flush: client.ManualFlush, BatchBytes: 50 << 20, BatchRows: rows})
		for k := range int32(rows) {
			op := tbl.NewInsert()
			if err := set(op, k, full); err != nil {
				t.Fatal(err)
			}
			if err := ses.Apply(t.Context(), op); err != nil {
				t.Fatal(err)
			}
		}
		writes := s.leaderWrites()
		if rowErrors, err := ses.Flush(t.Context()); err != nil || len(rowErrors) > 0 {
			t.Fatal(rowErrors, err)
		}
		if got := s.leaderWrites() - writes; got != 1 {
			t.Errorf("%v writes, want all rows in one", got)
		}
		s.atTheLimit(tbl)
		s.insert(tbl, int32(rows), "after")
	}, func(s state) {
		tbl := s.open("large")
		servers, err := s.cl.ListTabletServers(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, row := range s.rows(tbl, s.predicate(tbl, "k", client.Equal, int32(rows-1))) {
			if want := "798 " + full; row != want {
				s.Errorf("the last row is %.20q… of %d bytes", row, len(row))
			}
		}
		snapshot := s.cl.LatestTimestamp() + 1
		for _, server := range servers {
			n, err := tbl.Count(s.Context(), client.ScanOptions{ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: snapshot, ServerID: server.ID})
			if err != nil || n != rows+1 {
				s.Errorf("server %s: %d rows, %v", server.ID, n, err)
			}
		}
	})
}

// leaderWrites is how many writes were applied for their callers, on all servers.
func (s state) leaderWrites() (n float64) {
	s.Helper()
	for _, server := range tabletServers(s.T, s.c) {
		n += metric(s.T, server, "replica_writes_total", `result="ok"`)
	}
	return n
}

// atTheLimit sends each server a write whose request is as large as may be.
func (s state) atTheLimit(tbl *client.Table) {
	s.Helper()
	tablets, err := s.cl.Tablets(s.Context(), tbl)
	if err != nil {
		s.Fatal(err)
	}
	e := schema.NewOpsEncoder(tbl.Schema())
	req := &nyalav1.WriteRequest{TabletId: tablets[0].ID, SchemaVersion: tbl.Schema().Version(), RowOperations: &nyalav1.RowOperations{}}
	fill := func(k, size int) {
		s.Helper()
		if err := e.Append(schema.Insert, []schema.Value{schema.IntValue(int64(k)), schema.StringValue(strings.Repeat("x", size))}, nil); err != nil {
			s.Fatal(err)
		}
		req.RowOperations.Rows, req.RowOperations.IndirectData = e.Bytes()
	}
	const some = 1000
	for k := 10_000; proto.Size(req) < client.DefaultMaxMessageSize-schema.MaxCellSize-2*some; k++ {
		fill(k, schema.MaxCellSize-some)
	}
	before := proto.Size(req)
	fill(1, some)
	overhead := proto.Size(req) - before - some
	fill(2, client.DefaultMaxMessageSize-proto.Size(req)-overhead)
	if got := proto.Size(req); got != client.DefaultMaxMessageSize {
		s.Fatalf("made %d bytes of %d", got, client.DefaultMaxMessageSize)
	}
	for _, server := range tabletServers(s.T, s.c) {
		ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
		_, err := nyalav1.NewTabletServiceClient(dialServer(s.T, server.RPC)).Write(ctx, req, grpc.MaxCallSendMsgSize(64<<20))
		cancel()
		switch code := status.CodeOf(status.FromGRPC(err)); code {
		case status.TooLarge, status.NotTheLeader:
		default:
			s.Errorf("a write of the limit's size at %s: %v", server.RPC, err)
		}
	}
}
