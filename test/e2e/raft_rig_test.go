package e2e

import (
	"context"
	"io"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// inForm is how long something lasts, or how much of it there is: in the tests, and in the long form of make trials.
func inForm[T any](short, long T) T {
	if os.Getenv("NYALA_TRIALS") != "" {
		return long
	}
	return short
}

// replicaOn is a tablet's replica as its server sees it; nil: it doesn't say.
func replicaOn(t *testing.T, s localcluster.Server, tablet string) *nyalav1.ReplicaStatus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn := dialServer(t, s.RPC)
	defer conn.Close()
	resp, err := nyalav1.NewTabletAdminServiceClient(conn).ListTablets(ctx, &nyalav1.ListTabletsRequest{TabletIds: []string{tablet}})
	if err != nil || len(resp.GetReplicas()) != 1 {
		return nil
	}
	return resp.GetReplicas()[0]
}

// others are the cluster's tablet servers but one.
func others(t *testing.T, c *localcluster.Cluster, but localcluster.Server) (rest []localcluster.Server) {
	t.Helper()
	for _, s := range tabletServers(t, c) {
		if s.Name != but.Name {
			rest = append(rest, s)
		}
	}
	return rest
}

// slowLog has each sync of a server's log take longer from now on; 0: no longer.
func slowLog(t *testing.T, s localcluster.Server, by time.Duration) {
	t.Helper()
	resp, err := http.Post("http://"+s.Web+"/varz?log_inject_latency_ms_mean="+strconv.FormatInt(by.Milliseconds(), 10), "", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s", resp.Status, body)
	}
}

// cpuTime is what a server's process has used so far.
func cpuTime(t *testing.T, s localcluster.Server) time.Duration {
	t.Helper()
	return time.Duration((metric(t, s, "cpu_utime") + metric(t, s, "cpu_stime")) * float64(time.Millisecond))
}
