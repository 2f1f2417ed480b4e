package replica

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// TestExactlyOnceUnderChurn lets several clients insert rows, each request sent to any server and again until it is answered,
// often twice at once, while leaderships move and servers are killed. No request may fail, and none may be applied twice:
// then its rows would be there already. All replicas end with the same rows.
func TestExactlyOnceUnderChurn(t *testing.T) {
	r := newRig(t, 3).startAll()
	id := r.create(r.servers...)
	r.leader(id)
	const clients, writes = 4, 60
	var mu sync.RWMutex // held for writing while servers are killed and started
	send := func(rnd *rand.Rand, req *nyalav1.WriteRequest) (*nyalav1.WriteResponse, error) {
		mu.RLock()
		defer mu.RUnlock()
		s := r.servers[rnd.IntN(len(r.servers))]
		if s.n == nil {
			return nil, status.New(status.ServiceUnavailable, "it is down")
		}
		rep, err := s.n.Replicas.Replica(id)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+rnd.IntN(200))*time.Millisecond)
		defer cancel()
		return rep.Write(ctx, req)
	}
	stop := make(chan struct{})
	var writers, trouble sync.WaitGroup
	for c := range clients {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(c), 1))
			client := newRequests()
			for i := range writes {
				req := client.insert(t, id, int64(c*writes+i))
				req.RequestId.FirstIncompleteSeqNo = req.GetRequestId().GetSeqNo()
				answer := func(rnd *rand.Rand) *nyalav1.WriteResponse {
					for {
						resp, err := send(rnd, req)
						if err == nil {
							return resp
						}
						if code := status.CodeOf(err); !code.Retriable() && code != status.TimedOut {
							t.Errorf("request %d: %v", i, err)
							return &nyalav1.WriteResponse{}
						}
					}
				}
				var twin sync.WaitGroup
				if i%3 == 0 {
					twin.Go(func() { answer(rand.New(rand.NewPCG(uint64(c), uint64(i)))) })
				}
				if resp := answer(rnd); len(resp.GetRowErrors()) > 0 {
					t.Errorf("request %d was applied twice: %v", i, resp.GetRowErrors())
				}
				twin.Wait()
			}
		})
	}
	trouble.Go(func() {
		rnd := rand.New(rand.NewPCG(7, 7))
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(20+rnd.IntN(60)) * time.Millisecond):
			}
			s := r.servers[rnd.IntN(len(r.servers))]
			if i%4 == 3 {
				mu.Lock()
				s.kill()
				s.start()
				mu.Unlock()
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_ = s.replica(id).StepDown(ctx, "")
			cancel()
		}
	})
	writers.Wait()
	close(stop)
	trouble.Wait()
	r.leader(id)
	for _, s := range r.servers {
		s.wantRows(id, atSnapshot, clients*writes)
		r.until("nobody waits any more", func() bool { return s.inFlight() == 0 })
	}
	checkSame(t, r, id)
}

// checkSame sees that every replica holds the same rows below one timestamp.
func checkSame(t *testing.T, r *rig, id ident.TabletID) {
	t.Helper()
	_, snapshot, err := r.leader(id).replica(id).ReadPoint(t.Context(), latest, 0, 0)
	require.NoError(t, err)
	var want uint64
	for i, s := range r.servers {
		tab, _, err := s.replica(id).ReadPoint(t.Context(), atSnapshot, snapshot, 0)
		require.NoError(t, err)
		_, sum, err := tab.Checksum(t.Context(), snapshot)
		require.NoError(t, err)
		if i == 0 {
			want = sum
		}
		require.Equal(t, want, sum, s.name)
	}
}
