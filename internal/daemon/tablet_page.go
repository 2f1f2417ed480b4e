package daemon

import (
	"fmt"
	"net/http"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/status"
)

// tabletPath is the page of one replica, under Kudu's name.
const tabletPath = "/tablet"

// TabletPage is the path of the page that a server has of its replica of a tablet.
func TabletPage(tabletID string) string { return tabletPath + "?id=" + tabletID }

// tabletPage describes this server's replica of the tablet that the request names.
func tabletPage(n *replica.Node) func(*http.Request) (Page, error) {
	return func(r *http.Request) (Page, error) {
		id := r.URL.Query().Get("id")
		s, _ := n.Replicas.Status(ident.TabletID(id))
		if s == nil {
			return Page{}, status.New(status.TabletNotFound, "this server has no replica of tablet %q", id)
		}
		about := Table{Rows: [][]Cell{
			TextRow("table", s.GetTableName()),
			TextRow("table's id", s.GetTableId()),
			TextRow("tablet", s.GetTabletId()),
			TextRow("replica", fmt.Sprint(s.GetReplicaId())),
			TextRow("state", replica.StateName(s.GetState())),
			TextRow("role", replica.RoleName(s.GetRole())),
			TextRow("term", fmt.Sprint(s.GetTerm())),
			TextRow("log", fmt.Sprintf("%d to %d, committed %d, applied %d", s.GetFirstIndex(), s.GetLastIndex(), s.GetCommitIndex(), s.GetAppliedIndex())),
			TextRow("schema version", fmt.Sprint(s.GetSchemaVersion())),
			{{Text: "metrics"}, {Text: "/metrics?ids=" + s.GetTabletId(), Link: "/metrics?ids=" + s.GetTabletId()}},
		}}
		for _, trouble := range [][]Cell{TextRow("error", s.GetError()), TextRow("clocks", s.GetClocks())} {
			if trouble[1].Text != "" {
				about.Rows = append(about.Rows, trouble)
			}
		}
		members := Table{Header: []string{"replica", "server", "address", "role"}}
		for _, p := range s.GetConfig().GetPeers() {
			role := "voter"
			switch {
			case p.GetReplicaId() == s.GetLeaderReplicaId():
				role = "leader"
			case p.GetLearner():
				role = "learner"
			}
			members.Rows = append(members.Rows, TextRow(fmt.Sprint(p.GetReplicaId()), p.GetServerId(), p.GetAddress(), role))
		}
		return Page{Title: "tablet " + s.GetTabletId() + " of " + s.GetTableName(), Sections: []PageSection{
			{Title: "Replica", Table: about}, {Title: "Members", Table: members},
		}}, nil
	}
}
