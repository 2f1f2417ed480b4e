package rpc

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// arrivals is a PeerHandler that says when something has come on the control channel. What comes on the data channel, which is
// larger, it is slow with.
type arrivals struct {
	came chan time.Time
	slow time.Duration
	full chan struct{} // at the sender: holds one once a message found the queue full
}

func (a *arrivals) Receive(_ ident.ServerID, b *nyalav1.PeerBatch) {
	switch ms := b.GetMessages(); {
	case len(ms) == 0: // what a beat came in
	case len(ms[0].GetRaft()) < 1000:
		a.came <- time.Now()
	default:
		<-time.After(a.slow)
	}
}

func (a *arrivals) HearBeat(ident.ServerID, *nyalav1.Beat) { a.came <- time.Now() }

func (a *arrivals) Unreachable(ident.ServerID, []*nyalav1.GroupMessage) { signal(a.full) }

// BenchmarkControlDelay measures how long after its time a beat, and a message on the control channel as heartbeats and votes are,
// is there at another server: with nothing else to do, with every core full of goroutines that never pause, and with a data channel
// full of entries beside that, whose receiver is slow. Both servers share this process, and so its cores with those goroutines.
// The delays' p99.9 wants a few thousand rounds: -benchtime 3000x.
func BenchmarkControlDelay(b *testing.B) {
	for _, kind := range []string{"beat", "heartbeat"} {
		for _, load := range []string{"none", "cores", "cores+data"} {
			b.Run("kind="+kind+"/load="+load, func(b *testing.B) { controlDelay(b, kind, load) })
		}
	}
}

func controlDelay(b *testing.B, kind, load string) {
	a := &arrivals{came: make(chan time.Time, 1), slow: 50 * time.Millisecond}
	start := func(id ident.ServerID, h PeerHandler) *node {
		n := &node{t: b, id: id, rec: newRecorder(), handler: h}
		n.cluster.Store(cluster)
		n.start()
		return n
	}
	high := start(highID, a)
	full := make(chan struct{}, 1)
	low := start(lowID, &arrivals{full: full})
	send := func() {
		if kind == "beat" {
			low.transport.SendBeat(high.id, high.address, time.Now(), func() *nyalav1.Beat { return &nyalav1.Beat{Sent: 1} })
		} else {
			low.send(high, Control, "heartbeat")
		}
	}
	send() // which connects
	<-a.came

	ctx, cancel := context.WithCancel(b.Context())
	var loads sync.WaitGroup
	defer loads.Wait()
	defer cancel()
	if strings.HasSuffix(load, "data") {
		entries := strings.Repeat("x", 256<<10)
		loads.Go(func() {
			for ctx.Err() == nil {
				for range 32 {
					low.send(high, Data, entries)
				}
				<-time.After(time.Millisecond)
			}
		})
		<-full
	}
	if strings.HasPrefix(load, "cores") {
		for range runtime.GOMAXPROCS(0) {
			loads.Go(func() {
				for n := 1; n != 0 && ctx.Err() == nil; {
					for range 1 << 16 {
						n = n*1664525 + 1013904223 | 1
					}
				}
			})
		}
	}
	var delays []time.Duration
	for b.Loop() {
		due := time.Now().Add(5 * time.Millisecond) // as a ticker's: that it comes late counts
		<-time.After(time.Until(due))
		send()
		delays = append(delays, (<-a.came).Sub(due))
	}
	slices.Sort(delays)
	ms := func(q float64) float64 {
		return float64(delays[int(q*float64(len(delays)-1))]) / float64(time.Millisecond)
	}
	b.ReportMetric(ms(0.5), "p50-ms")
	b.ReportMetric(ms(0.999), "p99.9-ms")
	b.ReportMetric(ms(1), "max-ms")
	b.ReportMetric(0, "ns/op")
}
