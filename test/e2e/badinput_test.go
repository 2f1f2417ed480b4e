package e2e

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// TestBadInput sends each kind of bad input to a running cluster, by the client and on the wire, and shows that it gets its own
// clear error, that what came with it is kept, and that the servers go on.
func TestBadInput(t *testing.T) {
	c := newCluster(t, 1)
	cl := connect(t, c)
	tbl := numbersTable(t, cl, "numbers", 1, 1)
	server := tabletServers(t, c)[0]
	before, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	rows := 0

	t.Run("client", func(t *testing.T) { rows += badRows(t, cl, tbl) })
	t.Run("tables", func(t *testing.T) { badTables(t, cl) })
	t.Run("wire", func(t *testing.T) { rows += badCalls(t, cl, tbl, server) })
	t.Run("garbage", func(t *testing.T) { garbage(t, c) })

	n, err := tbl.Count(t.Context(), client.ScanOptions{})
	if err != nil || n != uint64(rows) {
		t.Fatalf("at the end: %d rows, %v; want %d", n, err, rows)
	}
	after, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range after {
		if s.State != localcluster.StateRunning || s.Pid != before[i].Pid {
			t.Errorf("%s is %s, with process %d; it was %d", s.Name, s.State, s.Pid, before[i].Pid)
		}
	}
}

// badRows returns how many good rows it left.
func badRows(t *testing.T, cl *client.Client, tbl *client.Table) int {
	op := tbl.NewInsert()
	wantError(t, "wrong type", op.Set("id", "seven"), status.InvalidArgument, "id")
	wantError(t, "unknown column", op.Set("nmae", "x"), status.InvalidArgument, "nmae")
	wantError(t, "NULL in the key", op.Set("id", nil), status.InvalidArgument, "id")

	s := cl.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	insert := func(id int64, name string) {
		t.Helper()
		op := tbl.NewInsert()
		if err := errors.Join(op.Set("id", id), op.Set("name", name)); err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	insert(1, "first")
	insert(2, strings.Repeat("x", schema.MaxCellSize))
	insert(1, "again")
	insert(4, "last")
	op = tbl.NewInsert()
	err := errors.Join(op.Set("id", 3), op.Set("name", strings.Repeat("x", schema.MaxCellSize+1)))
	if err == nil {
		err = s.Apply(t.Context(), op)
	}
	wantError(t, "large cell", err, status.CellTooLarge, "65537")
	rowErrs, err := s.Flush(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(rowErrs) != 1 || rowErrs[0].Code != status.AlreadyPresent || rowErrs[0].Index != 2 {
		t.Fatalf("row errors: %v, want that row 2 is already present", rowErrs)
	}
	return 3
}

func badTables(t *testing.T, cl *client.Client) {
	create := func(o client.CreateTableOptions) error {
		_, err := cl.CreateTable(t.Context(), o)
		return err
	}
	key := []client.Column{{Name: "k", Type: client.String}}
	wantError(t, "exists", create(client.CreateTableOptions{Name: "numbers", Columns: key, PrimaryKey: []string{"k"}, Replicas: 1}),
		status.TableAlreadyPresent, "numbers")
	_, err := cl.OpenTable(t.Context(), "nubmers")
	wantError(t, "doesn't exist", err, status.TableNotFound, "nubmers")
	wantError(t, "delete what doesn't exist", cl.DeleteTable(t.Context(), "nubmers"), status.TableNotFound, "nubmers")
	wantError(t, "too few servers", create(client.CreateTableOptions{Name: "t", Columns: key, PrimaryKey: []string{"k"}, Replicas: 3}),
		status.TooFewTabletServers, "only 1 tablet server is alive; add --replicas 1")
	wantError(t, "even replicas", create(client.CreateTableOptions{Name: "t", Columns: key, PrimaryKey: []string{"k"}, Replicas: 2}),
		status.InvalidArgument, "odd")
	wantError(t, "float key", create(client.CreateTableOptions{
		Name: "t", Columns: []client.Column{{Name: "k", Type: client.Double}}, PrimaryKey: []string{"k"}, Replicas: 1,
	}), status.InvalidSchema, "k")

	// A key of 16,384 bytes is the longest.
	if err := create(client.CreateTableOptions{Name: "keys", Columns: key, PrimaryKey: []string{"k"}, Replicas: 1}); err != nil {
		t.Fatal(err)
	}
	tbl, err := cl.OpenTable(t.Context(), "keys")
	if err != nil {
		t.Fatal(err)
	}
	s := cl.NewSession(client.SessionOptions{Flush: client.SyncFlush})
	for _, c := range []struct {
		bytes int
		want  status.Code
	}{{schema.MaxEncodedKeySize, status.OK}, {schema.MaxEncodedKeySize + 1, status.KeyTooLarge}} {
		op := tbl.NewInsert()
		if err := op.Set("k", strings.Repeat("k", c.bytes)); err != nil {
			t.Fatal(err)
		}
		if err := s.Apply(t.Context(), op); client.CodeOf(err) != c.want {
			t.Errorf("key of %d bytes: %v, want %v", c.bytes, err, c.want)
		}
	}
	if err := cl.DeleteTable(t.Context(), "keys"); err != nil {
		t.Fatal(err)
	}
}

// badCalls returns how many good rows it left.
func badCalls(t *testing.T, cl *client.Client, tbl *client.Table, server localcluster.Server) int {
	conn, err := grpc.NewClient(server.RPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(100<<20)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	svc := nyalav1.NewTabletServiceClient(conn)
	tablets, err := cl.Tablets(t.Context(), tbl)
	if err != nil {
		t.Fatal(err)
	}
	write := func(tablet string, ops *nyalav1.RowOperations) (*nyalav1.WriteResponse, error) {
		resp, err := svc.Write(t.Context(), &nyalav1.WriteRequest{TabletId: tablet, RowOperations: ops})
		return resp, status.FromGRPC(err)
	}
	_, err = write(ident.New(), &nyalav1.RowOperations{})
	wantError(t, "unknown tablet", err, status.TabletNotFound, "tablet")
	_, err = write(tablets[0].ID, &nyalav1.RowOperations{Rows: []byte{1, 3, 0, 1, 2}})
	wantError(t, "rows cut short", err, status.MismatchedSchema, "the data ends")
	_, err = write(tablets[0].ID, &nyalav1.RowOperations{Rows: []byte{99, 3, 0}})
	wantError(t, "unknown operation", err, status.MismatchedSchema, "99")
	// The key's null bit is set and its cell follows: a fault of this row alone.
	resp, err := write(tablets[0].ID, &nyalav1.RowOperations{Rows: []byte{1, 1, 1, 7, 0, 0, 0, 0, 0, 0, 0}})
	if err != nil || len(resp.GetRowErrors()) != 1 || status.Code(resp.GetRowErrors()[0].GetCode()) != status.InvalidArgument {
		t.Errorf("NULL in a key column: %v, %v", resp, err)
	}
	// A cell of 65,537 bytes, which no client of ours would send, between two good rows.
	big := make([]byte, schema.MaxCellSize+1)
	ops := &nyalav1.RowOperations{IndirectData: big}
	for id, size := range map[byte]int{10: 1, 11: len(big), 12: 1} {
		ops.Rows = append(ops.Rows, 1, 3, 0, id, 0, 0, 0, 0, 0, 0, 0)
		ops.Rows = binary.LittleEndian.AppendUint64(ops.Rows, 0)
		ops.Rows = binary.LittleEndian.AppendUint64(ops.Rows, uint64(size))
	}
	resp, err = write(tablets[0].ID, ops)
	if err != nil || len(resp.GetRowErrors()) != 1 || status.Code(resp.GetRowErrors()[0].GetCode()) != status.CellTooLarge {
		t.Errorf("large cell on the wire: %v, %v", resp, err)
	}
	_, err = svc.Write(t.Context(), &nyalav1.WriteRequest{TabletId: tablets[0].ID, RowOperations: &nyalav1.RowOperations{Rows: make([]byte, 60<<20)}})
	if grpcstatus.Code(err) != codes.ResourceExhausted {
		t.Errorf("request of 60 MB: %v", err)
	}
	_, err = svc.Scan(t.Context(), &nyalav1.ScanRequest{Target: &nyalav1.ScanRequest_ScannerId{ScannerId: []byte("nobody's")}})
	wantError(t, "unknown scanner", status.FromGRPC(err), status.ScannerExpired, "")
	_, err = svc.Scan(t.Context(), &nyalav1.ScanRequest{Target: &nyalav1.ScanRequest_NewScan{NewScan: &nyalav1.NewScan{
		TabletId: tablets[0].ID, Columns: []string{"no such"},
	}}})
	wantError(t, "unknown column in a scan", status.FromGRPC(err), status.InvalidScanSpec, "no such")
	return 2
}

// garbage sends bytes that are no protocol to every port of every server.
func garbage(t *testing.T, c *localcluster.Cluster) {
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 64<<10)
	rand.Read(noise)
	for _, s := range servers {
		for _, address := range []string{s.RPC, s.Web} {
			for _, bytes := range [][]byte{noise, []byte("GET / HTTP/1.1\r\n\r\n"), []byte("hrpc\x09\x00\x00"), {0xff, 0xff, 0xff, 0xff}} {
				conn, err := net.DialTimeout("tcp", address, 5*time.Second)
				if err != nil {
					t.Fatalf("%s %s: %v", s.Name, address, err)
				}
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
				_, _ = conn.Write(bytes)
				_ = conn.(*net.TCPConn).CloseWrite()
				if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s %s keeps a connection open that speaks no protocol", s.Name, address)
				}
				conn.Close()
			}
		}
	}
}

func wantError(t *testing.T, what string, err error, code status.Code, contains string) {
	t.Helper()
	if err == nil || client.CodeOf(err) != code || !strings.Contains(err.Error(), contains) {
		t.Errorf("%s: %v (%v), want %v and %q in the text", what, err, client.CodeOf(err), code, contains)
	}
}
