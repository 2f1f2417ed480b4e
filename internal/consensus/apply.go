package consensus

import (
	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/wal"
)

// apply hands committed entries on. With asynchronous storage writes raft names only entries that are durable here (I2).
func (g *group) apply(m *raftpb.Message) {
	a := Apply{Tablet: g.cfg.Tablet, Number: g.cfg.Number, Entries: make([]CommittedEntry, 0, len(m.GetEntries()))}
	highest := g.appliedTS
	if n := len(g.appliedStamps); n > 0 {
		highest = g.appliedStamps[n-1]
	}
	for _, e := range m.GetEntries() {
		info, err := wal.DecodeEntry(e)
		if err != nil {
			g.fail(status.Wrap(status.Corruption, err, "tablet %s: committed entry %s", g.cfg.Tablet, opID(e)))
			return
		}
		ce := CommittedEntry{OpID: opID(e), Kind: info.Kind, Timestamp: info.Timestamp, Payload: info.Payload}
		if info.Kind == wal.KindConfig {
			if ce.Config, err = g.adoptConfig(e, info.Payload); err != nil {
				g.fail(status.Wrap(status.Corruption, err, "tablet %s: config entry %s", g.cfg.Tablet, opID(e)))
				return
			}
		}
		a.Entries = append(a.Entries, ce)
		a.Bytes += len(e.GetData())
		highest = max(highest, info.Timestamp)
	}
	g.applying = append(g.applying, m.GetResponses()[0])
	g.appliedStamps = append(g.appliedStamps, highest)
	g.core.out.Applies = append(g.core.out.Applies, a)
}

// applied tells raft that the oldest Apply is done.
func (g *group) applied() {
	invariant.Check(len(g.applying) > 0, "tablet %s: applied what was not handed out", g.cfg.Tablet)
	m := g.applying[0]
	g.applying = g.applying[1:]
	ents := m.GetEntries()
	g.appliedTo = ident.Index(ents[len(ents)-1].GetIndex())
	g.appliedTS = g.appliedStamps[0]
	g.appliedStamps = g.appliedStamps[1:]
	invariant.Check(g.appliedTo <= g.commit, "tablet %s: applied %d > committed %d", g.cfg.Tablet, g.appliedTo, g.commit)
	g.configApplied()
	if g.foreign > 0 || g.frozen {
		g.foreign = max(g.foreign-1, 0) // the node that is there begins behind it
		return
	}
	g.hear(m)
}
