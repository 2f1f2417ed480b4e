package master

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/nyaladb/nyala/internal/daemon"
)

// maxTablesShown bounds the table of tables on the index page.
const maxTablesShown = 1000

// AddPages adds the master's pages to its web server: the tablet servers and tables on the index, a page of
// each table, and /prometheus-sd.
func (m *Master) AddPages(w *daemon.Web) {
	w.AddSection(daemon.Section{Title: "Tablet servers", Order: 2, Table: m.serversTable})
	w.AddSection(daemon.Section{Title: "Tables", Order: 2, Table: m.tablesTable})
	w.AddPage(tablePath, m.tablePage)
	w.Handle("GET /prometheus-sd", http.HandlerFunc(m.serveDiscovery))
	w.Link("/prometheus-sd", "the web addresses of all servers, for Prometheus' HTTP service discovery")
}

func (m *Master) serversTable(context.Context) (daemon.Table, error) {
	t := daemon.Table{Header: []string{"server", "RPC", "web", "state", "heard", "replicas", "leaders", "version"}}
	for _, s := range m.servers.list(time.Now()) {
		state := "alive"
		if !s.GetAlive() {
			state = "dead"
		}
		row := daemon.TextRow(s.GetServerId(), first(s.GetRpcAddresses()), first(s.GetWebAddresses()), state,
			fmt.Sprintf("%.1f s ago", float64(s.GetMsSinceHeartbeat())/1000),
			fmt.Sprint(s.GetNumReplicas()), fmt.Sprint(s.GetNumLeaders()), shortVersion(s.GetVersion()))
		if web := first(s.GetWebAddresses()); web != "" {
			row[2].Link = "http://" + web + "/"
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

func (m *Master) tablesTable(context.Context) (daemon.Table, error) {
	t := daemon.Table{Header: []string{"table", "id", "tablets", "without leader", "under-replicated", "unavailable"}}
	for i, th := range m.health(time.Now()).tables {
		if i == maxTablesShown {
			t.Rows = append(t.Rows, daemon.TextRow("…", "more than are shown here", "", "", "", ""))
			break
		}
		row := daemon.TextRow(th.name, string(th.id), fmt.Sprint(th.tablets), fmt.Sprint(th.withoutLeader),
			fmt.Sprint(th.underReplicated), fmt.Sprint(th.unavailable))
		row[1].Link = tablePath + "?id=" + string(th.id) // a name may be empty to the eye
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// shortVersion leaves out what stands in brackets behind a version: commit, date and so on, which the server's own page tells.
func shortVersion(version string) string {
	short, _, _ := strings.Cut(version, " (")
	return short
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// targetGroup is one entry of Prometheus' HTTP service discovery.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// discovery lists the servers of the cluster whose web address is known, in Kudu's form. Dead ones stay in it: that a server
// can't be scraped is what says that it is down. A master that doesn't lead knows nothing, and lists nothing.
func (m *Master) discovery(now time.Time) []targetGroup {
	groups := []targetGroup{}
	m.catalog.mu.RLock()
	err := m.leadingLocked()
	m.catalog.mu.RUnlock()
	if err != nil {
		return groups
	}
	add := func(web []string, group, serverID string) {
		if len(web) == 0 {
			return
		}
		groups = append(groups, targetGroup{Targets: web[:1], Labels: map[string]string{
			"__scheme__": "http", "group": group, "cluster_id": string(m.node.ClusterID()), "server_id": serverID,
		}})
	}
	for _, s := range m.masters() {
		add(s.GetWebAddresses(), "masters", s.GetServerId())
	}
	for _, s := range m.servers.list(now) {
		add(s.GetWebAddresses(), "tservers", s.GetServerId())
	}
	return groups
}

func (m *Master) serveDiscovery(rw http.ResponseWriter, _ *http.Request) {
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Cache-Control", "no-store")
	enc := json.NewEncoder(rw)
	enc.SetIndent("", "  ")
	_ = enc.Encode(m.discovery(time.Now())) // who asked has gone
}
