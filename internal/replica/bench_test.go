package replica

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkWrite measures a tracked write from the check of its rows to its answer, on one server, WAL and its syncs
// included: with many callers at once they share commits.
func BenchmarkWrite(b *testing.B) {
	for _, callers := range []int{1, 64} {
		for _, rows := range []int{1, 100} {
			b.Run(fmt.Sprintf("callers=%d/rows=%d", callers, rows), func(b *testing.B) {
				r := newRig(b, 1).startAll()
				id := r.create(r.servers...)
				rep := r.leader(id).replica(id)
				var next atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(callers)
				b.RunParallel(func(pb *testing.PB) {
					client := newRequests()
					ids := make([]int64, rows)
					for pb.Next() {
						for i := range ids {
							ids[i] = next.Add(1)
						}
						req := client.insert(b, id, ids...)
						req.RequestId.FirstIncompleteSeqNo = req.GetRequestId().GetSeqNo()
						resp, err := rep.Write(b.Context(), req)
						if err != nil || len(resp.GetRowErrors()) > 0 {
							b.Errorf("%v, %v", err, resp.GetRowErrors())
							return
						}
					}
				})
			})
		}
	}
}

// BenchmarkReadPoint measures how long a read waits for its point in time, on one server.
func BenchmarkReadPoint(b *testing.B) {
	r := newRig(b, 1).startAll()
	id := r.create(r.servers...)
	s := r.leader(id)
	s.write(newRequests().insert(b, id, 1))
	for mode, name := range readModes {
		b.Run("mode="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, err := s.replica(id).ReadPoint(b.Context(), mode, 0, 0)
				require.NoError(b, err)
			}
		})
	}
}
