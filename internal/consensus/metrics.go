package consensus

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/status"
)

// metrics are a host's counters, over all its groups.
type metrics struct {
	reg              prometheus.Registerer
	list, registered []prometheus.Collector

	messagesSent     map[raftpb.MessageType]prometheus.Counter
	messagesOther    prometheus.Counter
	messagesNotice   prometheus.Counter
	messagesProbe    prometheus.Counter
	noOpHeartbeats   prometheus.Counter
	heartbeatBatches prometheus.Counter
	heartbeatBytes   prometheus.Counter
	heartbeatGroups  prometheus.Histogram
	heartbeatTrip    prometheus.Histogram
	heartbeatsLost   prometheus.Counter
	commitLag        prometheus.Histogram
	messagesReceived prometheus.Counter
	ignored          map[string]prometheus.Counter
	unreachable      prometheus.Counter
	proposals        map[string]prometheus.Counter
	handedOver       map[cause]prometheus.Counter
	readRequests     prometheus.Counter
	readRounds       prometheus.Counter
	closeRequests    prometheus.Counter
	closeRounds      prometheus.Counter
	promisesMade     prometheus.Counter
	promisesRefused  prometheus.Counter
	campaigns        map[electionCause]prometheus.Counter
	messagesQuiet    map[string]prometheus.Counter
	messagesServer   map[string]prometheus.Counter
	wakes            map[wakeCause]prometheus.Counter
	quiet            prometheus.Gauge
	electionsWon     prometheus.Counter
	failed           prometheus.Counter
	refused          map[string]prometheus.Counter
	messagesRefused  prometheus.Counter
	clockIgnored     prometheus.Counter
	logCuts          prometheus.Counter
	suffixCuts       prometheus.Counter
	groups           prometheus.Gauge
	leading          prometheus.Gauge
	outOfSpace       prometheus.Gauge
	logStalled       prometheus.Gauge
	logStalls        prometheus.Counter
	logQueueBytes    prometheus.Gauge
	commitAppends    prometheus.Histogram
	applyGroups      prometheus.Histogram
}

// The kinds of raft messages that go between servers, as label values.
var messageKinds = map[raftpb.MessageType]string{
	raftpb.MsgApp:           "append",
	raftpb.MsgAppResp:       "append_response",
	raftpb.MsgHeartbeat:     "heartbeat",
	raftpb.MsgHeartbeatResp: "heartbeat_response",
	raftpb.MsgVote:          "vote",
	raftpb.MsgVoteResp:      "vote_response",
	raftpb.MsgPreVote:       "pre_vote",
	raftpb.MsgPreVoteResp:   "pre_vote_response",
	raftpb.MsgTimeoutNow:    "timeout_now",
}

// The kinds of messages about quiet groups, as label values.
const (
	kindOffer       = "quiet_offer"
	kindOfferAnswer = "quiet_answer"
	kindNotQuiet    = "not_quiet"
	kindLeave       = "leave"
)

var quietMessageKinds = []string{kindOffer, kindOfferAnswer, kindNotQuiet, kindLeave}

// The kinds of messages between servers themselves, as label values.
const (
	kindBeat        = "beat"
	kindQuestion    = "silence_question"
	kindAnswer      = "silence_answer"
	kindListRequest = "quiet_list_request"
	kindList        = "quiet_list"
)

var serverMessageKinds = []string{kindBeat, kindQuestion, kindAnswer, kindListRequest, kindList}

var proposalResults = []string{"ok", "not_the_leader", "unavailable", "too_busy", "out_of_space", "clock", "other"}

// The two ends at which a refused entry is counted.
const (
	sideFollower = "follower"
	sideLeader   = "leader"
)

// newMetrics makes the metrics and registers them; reg may be nil.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := makeMetrics()
	m.reg = reg
	if reg == nil {
		return m, nil
	}
	for _, c := range m.list {
		if err := reg.Register(c); err != nil {
			m.close()
			return nil, fmt.Errorf("consensus: register a metric: %w", err)
		}
		m.registered = append(m.registered, c)
	}
	return m, nil
}

func makeMetrics() *metrics {
	m := &metrics{
		messagesSent: make(map[raftpb.MessageType]prometheus.Counter),
		ignored:      make(map[string]prometheus.Counter),
		proposals:    make(map[string]prometheus.Counter),
		handedOver:   make(map[cause]prometheus.Counter),
		refused:      make(map[string]prometheus.Counter),

		campaigns:      make(map[electionCause]prometheus.Counter),
		messagesQuiet:  make(map[string]prometheus.Counter),
		messagesServer: make(map[string]prometheus.Counter),
		wakes:          make(map[wakeCause]prometheus.Counter),
	}
	sent := m.counters("raft_server_messages_total", "Raft messages handed to the connections to other servers.", "kind")
	for t, kind := range messageKinds {
		m.messagesSent[t] = sent.WithLabelValues(kind)
	}
	m.messagesNotice = sent.WithLabelValues("commit_notice")
	m.messagesProbe = sent.WithLabelValues("append_probe")
	m.messagesOther = sent.WithLabelValues("closed_timestamp")
	m.messagesRefused = sent.WithLabelValues("entry_refused")
	// Kudu's names where Kudu has the thing.
	m.noOpHeartbeats = m.counter("no_op_heartbeat_count", "Heartbeats without entries that leaders here sent to followers.")
	m.heartbeatBatches = m.counter("heartbeat_batch_count", "Batches of heartbeats sent to other servers, those of answers alone not counted.")
	m.heartbeatBytes = m.counter("raft_heartbeat_bytes_total",
		"Bytes of heartbeats and their answers handed to the connections: by the messages of kinds heartbeat and heartbeat_response they make the bytes per heartbeat.")
	m.heartbeatGroups = m.histogram("raft_heartbeat_batch_groups", "Heartbeats of groups in one batch.")
	m.heartbeatTrip = m.duration("raft_heartbeat_round_trip_seconds",
		"Time from when a batch of heartbeats left until the answer to one of them was back, less the answer's wait for others: no less than the delay of a heartbeat until its group had it.")
	m.heartbeatsLost = m.counter("raft_heartbeats_unread_total", "Heartbeats and answers in batches whose numbers had to be asked for, as after a lost batch.")
	for _, kind := range quietMessageKinds {
		m.messagesQuiet[kind] = sent.WithLabelValues(kind)
	}
	for _, kind := range serverMessageKinds {
		m.messagesServer[kind] = sent.WithLabelValues(kind)
	}
	m.commitLag = m.duration("raft_follower_commit_lag_seconds",
		"At a follower, time from when an entry was durable here until it was known here to be committed; 0 where that was known first.")
	m.messagesReceived = m.counter("raft_server_messages_received_total", "Messages of groups received from other servers.")
	ignored := m.counters("raft_messages_ignored_total", "Messages received and left alone.", "reason")
	for _, r := range ignoredReasons {
		m.ignored[r] = ignored.WithLabelValues(r)
	}
	m.unreachable = m.counter("raft_messages_unsent_total", "Messages that could not be sent.")
	proposals := m.counters("raft_proposals_total", "Proposals by what became of them; ok: appended to a leader's log.", "result")
	for _, r := range proposalResults {
		m.proposals[r] = proposals.WithLabelValues(r)
	}
	handedOver := m.counters("raft_leaderships_handed_over_total", "Leaderships that replicas here gave away, by why.", "cause")
	for _, c := range causes {
		m.handedOver[c] = handedOver.WithLabelValues(string(c))
	}
	m.readRequests = m.counter("raft_read_index_requests_total", "Reads that asked for a read index.")
	m.readRounds = m.counter("raft_read_index_rounds_total", "Rounds that confirmed read indexes; reads that wait share one.")
	m.closeRequests = m.counter("raft_close_timestamp_requests_total", "Reads that asked for a closed timestamp.")
	m.closeRounds = m.counter("raft_close_timestamp_rounds_total", "Rounds of promises that leaders began.")
	m.promisesMade = m.counter("raft_promises_total", "Promises to close a timestamp given to leaders elsewhere.")
	m.promisesRefused = m.counter("raft_promises_refused_total", "Promises refused: another term, or a timestamp too far ahead.")
	campaigns := m.counters("raft_elections_begun_total", "Elections in which a replica here stood, by why.", "cause")
	for _, c := range electionCauses {
		m.campaigns[c] = campaigns.WithLabelValues(string(c))
	}
	wakes := m.counters("raft_quiet_wakes_total", "Quiet replicas here that woke, by why.", "cause")
	for _, c := range wakeCauses {
		m.wakes[c] = wakes.WithLabelValues(string(c))
	}
	m.quiet = m.gauge("raft_quiet_groups", "Replicas here that are quiet: nothing is done for them until they are needed.")
	m.electionsWon = m.counter("raft_elections_won_total", "Elections won by a replica here.")
	m.failed = m.counter("raft_failed_replicas_total", "Replicas that failed since the start.")
	refused := m.counters("raft_entries_refused_total",
		"Entries refused because their timestamps are too far ahead: at the follower that refuses; at the leader, answers that say so.", "side")
	for _, side := range []string{sideFollower, sideLeader} {
		m.refused[side] = refused.WithLabelValues(side)
	}
	m.clockIgnored = m.counter("raft_clock_updates_refused_total", "Clock readings of other servers left alone because they are too far ahead.")
	m.logCuts = m.counter("raft_log_cuts_total", "Times a log was cut behind what is durable everywhere.")
	m.suffixCuts = m.counter("raft_log_suffix_cuts_total", "Times a leader cut entries of its own that others refuse for their timestamps.")
	m.groups = m.gauge("raft_groups", "Replicas that run on this server.")
	m.leading = m.gauge("raft_leaders", "Replicas here that lead.")
	m.logStalled = m.gauge("raft_log_stalled", "1 while a commit of the log has been under way for more than an election timeout, and leaderships are handed over.")
	m.logStalls = m.counter("raft_log_stalls_total", "Times that a commit of the log was under way for more than an election timeout.")
	m.outOfSpace = m.gauge("raft_log_out_of_space", "1 while the log has no room and writes are refused.")
	m.logQueueBytes = m.gauge("raft_log_queue_bytes", "Bytes that wait for the log writer.")
	m.commitAppends = m.histogram("raft_commit_appends", "Appends of groups that shared one commit of the log.")
	m.applyGroups = m.histogram("raft_apply_groups", "Groups that shared one call to the state machine.")
	return m
}

// close takes the metrics off their registerer.
func (m *metrics) close() {
	for _, c := range m.registered {
		m.reg.Unregister(c)
	}
	m.registered = nil
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.list = append(m.list, c)
	return c
}

func (m *metrics) counters(name, help, label string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	m.list = append(m.list, c)
	return c
}

func (m *metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.list = append(m.list, g)
	return g
}

func (m *metrics) histogram(name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1, 2, 11)})
	m.list = append(m.list, h)
	return h
}

// duration is a histogram of seconds, from 1 ms to 4 s.
func (m *metrics) duration(name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: []float64{
		0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 4,
	}})
	m.list = append(m.list, h)
	return h
}

func (m *metrics) sent(rm *raftpb.Message) {
	if t := rm.GetType(); t == raftpb.MsgApp && len(rm.GetEntries()) == 0 {
		m.messagesProbe.Inc()
	} else if c := m.messagesSent[t]; c != nil {
		c.Inc()
	}
}

func (m *metrics) proposed(err error) {
	result := "other"
	switch status.CodeOf(err) {
	case status.OK:
		result = "ok"
	case status.NotTheLeader:
		result = "not_the_leader"
	case status.ServiceUnavailable, status.TabletFailed, status.TabletNotRunning:
		result = "unavailable"
	case status.TooBusy:
		result = "too_busy"
	case status.OutOfSpace:
		result = "out_of_space"
	case status.Clock:
		result = "clock"
	default:
	}
	m.proposals[result].Inc()
}
