package daemon

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// Selection is what a scrape asks for, in the words of Kudu's /metrics.
type Selection struct {
	Level   Level
	Types   []string // entities; empty: all
	IDs     []string // parts of the ids of tablets, of tables, or of the server; empty: all
	Metrics []string // parts of names; "*": all; empty: all
}

// parseLevel reads debug, info or warn.
func parseLevel(text string) (Level, error) {
	i := slices.Index(levelNames[:], strings.ToLower(text))
	if i < 0 {
		return LevelInfo, fmt.Errorf("level %.40q: want debug, info or warn", text)
	}
	return Level(i), nil
}

// parseSelection reads a query. The level is byDefault where none is given; who asks for entities, ids or names gets what is
// asked for whatever its level.
func parseSelection(q url.Values, byDefault Level) (Selection, error) {
	s := Selection{Level: byDefault, Types: listOf(q, "types"), IDs: listOf(q, "ids"), Metrics: listOf(q, "metrics")}
	for _, t := range s.Types {
		if t != entityServer && t != entityTable && t != entityTablet {
			return s, fmt.Errorf("types %.40q: want server, table or tablet", t)
		}
	}
	if len(s.Types)+len(s.IDs)+len(s.Metrics) > 0 {
		s.Level = LevelDebug
	}
	if text := q.Get("level"); text != "" {
		level, err := parseLevel(text)
		if err != nil {
			return s, err
		}
		s.Level = level
	}
	return s, nil
}

// listOf reads a parameter that holds a list: separated by commas, given several times, or both.
func listOf(q url.Values, name string) []string {
	var out []string
	for _, v := range q[name] {
		for part := range strings.SplitSeq(v, ",") {
			if part != "" {
				out = append(out, part)
			}
		}
	}
	return out
}

// mayWant says whether s may ask for series of m.
func (s *Selection) mayWant(m MetricInfo) bool {
	return m.Level >= s.Level && (len(s.Types) == 0 || slices.Contains(s.Types, m.Entity)) &&
		(contain(m.Name, s.Metrics) || m.Entity != entityServer) // a table or tablet may be asked for by its id
}

// narrow drops the series of f that s doesn't ask for, and says whether any is left.
func (s *Selection) narrow(f *dto.MetricFamily, m MetricInfo, serverID string) bool {
	if !s.mayWant(m) {
		return false
	}
	named := contain(m.Name, s.Metrics)
	if named && len(s.IDs) == 0 {
		return true
	}
	idLabel := map[string]string{entityTable: tableIDLabel, entityTablet: tabletIDLabel}[m.Entity]
	f.Metric = slices.DeleteFunc(f.Metric, func(series *dto.Metric) bool {
		id := serverID
		for _, l := range series.GetLabel() {
			if l.GetName() == idLabel {
				id = l.GetValue()
			}
		}
		// As Kudu's: a part of an entity's id among the names asks for all of that entity.
		return !contain(id, s.IDs) || !named && !contain(id, s.Metrics)
	})
	return len(f.Metric) > 0
}

// contain says whether text has one of the parts in it; no parts at all ask for everything.
func contain(text string, parts []string) bool {
	return len(parts) == 0 || slices.ContainsFunc(parts, func(p string) bool { return p == "*" || strings.Contains(text, p) })
}
