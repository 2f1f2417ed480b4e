package consensus

import (
	"fmt"
	"sync/atomic"
	"testing"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// BenchmarkCoreTick is a tick of followers that hear nothing and have nothing to do.
func BenchmarkCoreTick(b *testing.B) {
	for _, groups := range []int{1, 1000} {
		b.Run(fmt.Sprintf("groups=%d", groups), func(b *testing.B) {
			log := wal.NewMem()
			c := NewCore(CoreConfig{HeartbeatTicks: 5, ElectionTicks: 1 << 30, PreElection: true}, newTestClock())
			cfg := &nyalav1.RaftConfig{Peers: []*nyalav1.Peer{{ReplicaId: 1}, {ReplicaId: 2}, {ReplicaId: 3}}}
			for i := range groups {
				var batch wal.Batch
				n := log.AllocateNumber()
				batch.CreateGroup(n, testTablet(i), nil, ident.OpID{})
				if err := log.Commit(&batch); err != nil {
					b.Fatal(err)
				}
				if _, err := c.StartGroup(GroupConfig{Number: n, Tablet: testTablet(i), Replica: 1, Config: cfg}, log.Log(n)); err != nil {
					b.Fatal(err)
				}
			}
			c.Take()
			b.ReportAllocs()
			for b.Loop() {
				c.Tick()
				c.Take()
			}
		})
	}
}

// BenchmarkHostPropose writes to groups of three replicas on three hosts in this process, logs in memory, from many
// writers at once; each write waits until it stands in the leader's log.
func BenchmarkHostPropose(b *testing.B) {
	for _, groups := range []int{1, 16} {
		b.Run(fmt.Sprintf("groups=%d/bytes=256", groups), func(b *testing.B) {
			c := newTestCluster(b, 3)
			leaders := make([]*testHost, groups)
			for i := range groups {
				c.createGroup(testTablet(i), 3)
				leaders[i] = c.leader(testTablet(i))
			}
			payload := make([]byte, 256)
			var next atomic.Int64
			b.ReportAllocs()
			b.SetBytes(int64(len(payload)))
			b.SetParallelism(32)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					i := int(next.Add(1)) % groups
					// A refusal is how a writer learns that it goes too fast; it counts as work done.
					_, _, _ = leaders[i].Propose(b.Context(), testTablet(i), wal.KindWrite, payload, nil)
				}
			})
		})
	}
}
