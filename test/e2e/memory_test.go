package e2e

import (
	"strings"
	"testing"

	"github.com/nyaladb/nyala/client"
)

// TestMemoryLimit runs a server above its soft memory limit: some writes are refused, each is taken in the end since the client
// comes back when it is told to, reads are never refused, and /healthz and /metrics say how things stand.
func TestMemoryLimit(t *testing.T) {
	c := newCluster(t, 1, "--memory_limit_hard_bytes=268435456", "--memory_limit_soft_percentage=1")
	cl := connect(t, c)
	s := state{t, c, cl, 1}
	tbl := s.create("rows", "k int64, v string", "k")
	server := tabletServers(t, c)[0]
	if soft, used := metric(t, server, "memory_limit_soft_bytes"), metric(t, server, "memory_used_bytes"); soft != 2684354 || used < soft {
		t.Fatalf("%v bytes are in use, the soft limit is %v", used, soft)
	}
	const rows = 200
	ses := cl.NewSession(client.SessionOptions{})
	for k := range int64(rows) {
		op := tbl.NewInsert()
		if err := set(op, k, "x"); err != nil {
			t.Fatal(err)
		}
		if err := ses.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
	refused := metric(t, server, "memory_limit_refusals_total")
	if refused < 1 || refused != metric(t, server, "leader_memory_pressure_rejections") {
		t.Errorf("%v writes were refused for memory, %v in all", refused, metric(t, server, "leader_memory_pressure_rejections"))
	}
	for range 20 {
		if n, err := tbl.Count(t.Context(), client.ScanOptions{}); err != nil || n != rows {
			t.Fatalf("%d rows, %v", n, err)
		}
	}
	if got := metric(t, server, "memory_limit_refusals_total"); got != refused {
		t.Errorf("reads were refused: %v, were %v", got, refused)
	}
	if _, body := get(t, "http://"+server.Web+"/healthz"); !strings.Contains(body, "writes are being refused") {
		t.Errorf("/healthz says %s", body)
	}
	t.Logf("%v of %d writes were refused", refused, rows)
}
