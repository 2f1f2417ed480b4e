package rpc

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/nyaladb/nyala/internal/status"
)

// Defaults of the queues.
const (
	// DefaultServiceQueueLength is Kudu's --rpc_service_queue_length.
	DefaultServiceQueueLength = 50
	// DefaultServiceThreads is how many calls of one service are worked on at once. Kudu's --rpc_num_service_threads is 20,
	// of threads that a write gives back while it waits for its log; here a call keeps its place until it is answered, and
	// places cost no threads.
	DefaultServiceThreads = 512
)

// Flow control windows are fixed: gRPC would else send a ping with each message that comes while none is on its way, to find
// out how large a window serves, which costs a fifth of a small write's time. A connection holds no more than connWindow that
// nobody has read.
const (
	streamWindow = 1 << 20
	connWindow   = 4 << 20
)

// busyRetry is about when a caller may try again whom a full queue turned away; the spread keeps those that came together
// from coming back together.
const busyRetry = 100 * time.Millisecond

// unlimitedServices and unlimitedMethods go past the queues: what keeps the cluster together must not wait behind what it
// serves. gRPC's own services are answered from memory.
var (
	unlimitedServices = []string{"nyala.v1.PeerService", "grpc."}
	unlimitedMethods  = []string{"nyala.v1.MasterService/TSHeartbeat"}
)

// bulkyMethods are those whose requests fill the memory, and are turned away while it is full.
var bulkyMethods = []string{"nyala.v1.TabletService/Write", "nyala.v1.ForwardService/ForwardWrite"}

// spread is some time around d.
func spread(d time.Duration) time.Duration { return d/2 + rand.N(d) }

// serviceQueue bounds the calls of one service: so many are worked on, so many wait, the next is turned away. A call enters
// it before its message is received, so one that waits holds no more than what the flow control window let in.
type serviceQueue struct {
	service string
	places  chan struct{} // one in it for each call that is worked on
	length  int64
	waiting atomic.Int64
	metrics queueMetrics
}

// enter waits for a place, which the caller must leave. It fails when the queue is full, and when the caller has gone by
// the time that its turn comes. A nil queue has room for all.
func (q *serviceQueue) enter(ctx context.Context) error {
	if q == nil {
		return nil
	}
	select {
	case q.places <- struct{}{}:
		return q.begun(ctx)
	default:
	}
	if q.waiting.Add(1) > q.length {
		q.waiting.Add(-1)
		q.metrics.overflows.Inc()
		return &status.Error{
			Code: status.TooBusy, RetryAfter: spread(busyRetry),
			Msg: q.service + " has as many calls as it takes, under way and waiting: try again later (--rpc_num_service_threads, --rpc_service_queue_length)",
		}
	}
	defer q.waiting.Add(-1)
	start := time.Now()
	defer func() { q.metrics.time.Observe(float64(time.Since(start).Microseconds())) }()
	select {
	case q.places <- struct{}{}:
		return q.begun(ctx)
	case <-ctx.Done():
		q.metrics.gone.Inc()
		return q.goneError(ctx)
	}
}

// begun gives the place back when the caller has gone.
func (q *serviceQueue) begun(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	q.leave()
	q.metrics.gone.Inc()
	return q.goneError(ctx)
}

func (q *serviceQueue) goneError(ctx context.Context) error {
	return status.Wrap(status.CodeOf(ctx.Err()), ctx.Err(), "%s: the call was dropped before it began", q.service)
}

// leave gives a place back.
func (q *serviceQueue) leave() {
	if q != nil {
		<-q.places
	}
}

// queueMetrics are those of one service's queue.
type queueMetrics struct {
	overflows, gone counter
	time            observer
}

// limitMetrics are those of all queues. The names are Kudu's, but that of the length, which Kudu doesn't show.
type limitMetrics struct {
	registration
	overflows, gone *prometheus.CounterVec
	time            *prometheus.HistogramVec
	waiting         *queueLengths
}

func newLimitMetrics(reg prometheus.Registerer) (*limitMetrics, error) {
	m := &limitMetrics{
		overflows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rpcs_queue_overflow",
			Help: "Calls turned away because the service's queue was full.",
		}, []string{"service"}),
		gone: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "rpcs_timed_out_in_queue",
			Help: "Calls dropped before they began, because their callers had gone or had waited as long as they would.",
		}, []string{"service"}),
		time: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "rpc_incoming_queue_time",
			Help:    "Time in the service's queue of the calls that had to wait, in microseconds as Kudu's.",
			Buckets: []float64{10, 100, 1e3, 1e4, 1e5, 1e6, 1e7},
		}, []string{"service"}),
		waiting: &queueLengths{desc: prometheus.NewDesc("rpc_service_queue_length", "Calls that wait in the service's queue.", []string{"service"}, nil)},
	}
	var err error
	m.registration, err = register(reg, m.overflows, m.gone, m.time, m.waiting)
	return m, err
}

// queue returns a queue for a service, whose series exist from now on; nil for one that has none.
func (m *limitMetrics) queue(service string, places, length int) *serviceQueue {
	for _, u := range unlimitedServices {
		if strings.HasPrefix(service, u) {
			return nil
		}
	}
	q := &serviceQueue{service: service, places: make(chan struct{}, places), length: int64(length), metrics: queueMetrics{
		overflows: m.overflows.WithLabelValues(service), gone: m.gone.WithLabelValues(service), time: m.time.WithLabelValues(service),
	}}
	m.waiting.add(q)
	return q
}

// queueLengths shows how many calls wait.
type queueLengths struct {
	desc   *prometheus.Desc
	queues atomic.Pointer[[]*serviceQueue]
}

func (l *queueLengths) add(q *serviceQueue) {
	var all []*serviceQueue
	if old := l.queues.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, q)
	l.queues.Store(&all)
}

// Describe implements prometheus.Collector.
func (l *queueLengths) Describe(ch chan<- *prometheus.Desc) { ch <- l.desc }

// Collect implements prometheus.Collector.
func (l *queueLengths) Collect(ch chan<- prometheus.Metric) {
	if all := l.queues.Load(); all != nil {
		for _, q := range *all {
			ch <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(q.waiting.Load()), q.service)
		}
	}
}
