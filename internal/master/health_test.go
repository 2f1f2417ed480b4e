package master

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/ident"
)

// TestHealth follows the counts of tablets that aren't well: none in a sound cluster; under-replicated when one of three
// servers is gone, without leader and unavailable when two are; and what the metrics say of it.
func TestHealth(t *testing.T) {
	r := newRig(t, 3)
	reg := prometheus.NewRegistry()
	require.NoError(t, r.master.m.register(reg))
	r.create(tableRequest("t", 2, 3))
	name := "a \"b\" \\ \n\r\x01😀"
	r.create(tableRequest(name, 1, 3))
	m := r.master.m
	sound := []tableHealth{{name: name, tablets: 1}, {name: "t", tablets: 2}}
	judged := func(now time.Time) []tableHealth {
		h := m.health(now)
		require.True(t, h.leads)
		for i := range h.tables {
			require.NotEmpty(t, h.tables[i].id)
			h.tables[i].id = ""
		}
		return h.tables
	}
	r.until("all replicas are reported", func() bool {
		h := m.health(time.Now()).tables
		return h[0].underReplicated+h[1].underReplicated == 0
	})
	require.Equal(t, sound, judged(time.Now()))

	gone := r.ts[0].n.ServerID()
	r.ts[0].kill()
	// The moment at which the one that is gone has been silent for too long; the others are heard after it.
	heard := func(is func(ident.ServerID) bool) (last time.Time) {
		m.servers.mu.Lock()
		defer m.servers.mu.Unlock()
		for id, ts := range m.servers.byID {
			if is(id) && (last.IsZero() || ts.heard.Before(last)) {
				last = ts.heard
			}
		}
		return last
	}
	silent := heard(func(id ident.ServerID) bool { return id == gone }).Add(time.Millisecond)
	r.until("the others are heard", func() bool { return heard(func(id ident.ServerID) bool { return id != gone }).After(silent) })
	now := silent.Add(m.servers.unresponsive)
	r.until("the others elect leaders", func() bool { return judged(now)[0].withoutLeader+judged(now)[1].withoutLeader == 0 })
	h := m.health(now)
	require.Equal(t, [2]int{2, 1}, [2]int{h.alive, h.dead})
	require.Equal(t, tableHealth{name: "t", tablets: 2, underReplicated: 2}, judged(now)[1])

	// All are silent for long: nothing is known to be there.
	lost := []tableHealth{
		{name: name, tablets: 1, withoutLeader: 1, underReplicated: 1, unavailable: 1},
		{name: "t", tablets: 2, withoutLeader: 2, underReplicated: 2, unavailable: 2},
	}
	require.Equal(t, lost, judged(time.Now().Add(time.Hour)))

	families, err := reg.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			key := f.GetName()
			for _, l := range s.GetLabel() {
				if l.GetName() == "table_name" {
					key += " " + l.GetValue()
				}
			}
			values[key] = s.GetGauge().GetValue()
		}
	}
	require.Equal(t, 1.0, values["master_leads"])
	require.Equal(t, 3.0, values["master_tablets"])
	require.Equal(t, 3.0, values["master_tablet_servers_alive"], "the one that is gone hasn't been silent for long by the real time")
	require.Contains(t, values, "master_tablets_under_replicated")
	require.Equal(t, 1.0, values["table_tablets "+name])
}
