package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPrometheusRules has promtool check the configuration and the rules, and runs the rules' own tests: each alert fires on
// the series that it is for, and none does while all is well.
func TestPrometheusRules(t *testing.T) {
	promtool := needProgram(t, "promtool")
	for _, args := range [][]string{
		{"check", "config", "prometheus.yml"},
		{"check", "rules", "recording.rules.yml", "alerts.rules.yml"},
		{"test", "rules", "rules_test.yml"},
	} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = prometheusDir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAlertsAreExplained shows that each alert has a section in docs/alerts.md, to which it points, a summary and a test of
// its rule.
func TestAlertsAreExplained(t *testing.T) {
	docs, tests := readFile(t, "../../docs/alerts.md"), readFile(t, filepath.Join(prometheusDir, "rules_test.yml"))
	alerts := strings.Split(readFile(t, filepath.Join(prometheusDir, "alerts.rules.yml")), "- alert: ")[1:]
	if len(alerts) < 20 {
		t.Fatalf("only %d alerts were found", len(alerts))
	}
	for _, a := range alerts {
		name, _, _ := strings.Cut(a, "\n")
		for what, found := range map[string]bool{
			"section in docs/alerts.md":       strings.Contains(docs, "\n## "+name+"\n"),
			"summary":                         strings.Contains(a, "\n          summary: "),
			"runbook":                         strings.Contains(a, "\n          runbook: docs/alerts.md#"+strings.ToLower(name)+"\n"),
			"severity":                        regexp.MustCompile(`severity: (critical|warning)\n`).MatchString(a),
			"test in rules_test.yml":          strings.Contains(tests, "alertname: "+name+"\n        exp_alerts:\n"),
			"test in rules_test.yml of quiet": strings.Contains(tests, "alertname: "+name+"\n        exp_alerts: []\n"),
		} {
			if !found {
				t.Errorf("%s has no %s", name, what)
			}
		}
	}
}

// dashboardQuery is one query of a panel.
type dashboardQuery struct{ where, expr string }

// dashboardQueries returns the queries of all dashboards, and holds the dashboards to what Grafana needs of them.
func dashboardQueries(t *testing.T) []dashboardQuery {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(grafanaDir, "*.json"))
	if err != nil || len(paths) < 5 {
		t.Fatalf("dashboards: %v %v", paths, err)
	}
	var out []dashboardQuery
	uids := map[string]bool{}
	for _, path := range paths {
		var d struct {
			UID, Title string
			Panels     []struct {
				ID                       int
				Title, Type, Description string
				GridPos                  struct{ X, Y, W, H int }
				Targets                  []struct{ Expr string }
			}
			Templating struct{ List []struct{ Name string } }
		}
		if err := json.Unmarshal([]byte(readFile(t, path)), &d); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if d.UID == "" || d.Title == "" || uids[d.UID] || len(d.Templating.List) != 3 {
			t.Errorf("%s: wants a uid of its own, a title and three variables", path)
		}
		uids[d.UID] = true
		ids := map[int]bool{}
		for i, p := range d.Panels {
			if p.Title == "" || ids[p.ID] || p.Type != "row" && len(p.Targets) == 0 || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: panel %d %q: wants a title, an id of its own, a query and a place", path, p.ID, p.Title)
			}
			ids[p.ID] = true
			for _, q := range d.Panels[:i] {
				a, b := p.GridPos, q.GridPos
				if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
					t.Errorf("%s: panels %q and %q lie over each other", path, p.Title, q.Title)
				}
			}
			for _, target := range p.Targets {
				out = append(out, dashboardQuery{filepath.Base(path) + ": " + p.Title, target.Expr})
			}
		}
	}
	return out
}

var (
	exprNoise = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]|"[^"]*"|\b(by|on|ignoring|without)\s*\([^)]*\)`)
	exprName  = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*\(?`)
)

// TestQueriesNameMetrics shows that every metric in a rule or on a dashboard is in docs/metrics.md, which another test holds
// to the code: a query of a metric that isn't there is no error to Prometheus.
func TestQueriesNameMetrics(t *testing.T) {
	docs := readFile(t, "../../docs/metrics.md")
	queries := dashboardQueries(t)
	recorded := map[string]bool{"up": true}
	for _, file := range []string{"recording.rules.yml", "alerts.rules.yml"} {
		text := readFile(t, filepath.Join(prometheusDir, file))
		for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllStringSubmatch(text, -1) {
			recorded[m[1]] = true
		}
		for _, m := range regexp.MustCompile(`(?m)expr:(?: >-\n)?((?:.*)(?:\n {10}.*)*)`).FindAllStringSubmatch(text, -1) {
			expr, _, _ := strings.Cut(m[1], "\n        for:")
			queries = append(queries, dashboardQuery{file, expr})
		}
	}
	names := 0
	for _, q := range queries {
		for _, name := range exprName.FindAllString(exprNoise.ReplaceAllString(q.expr, " "), -1) {
			if strings.HasSuffix(name, "(") || slices.Contains([]string{"sum", "min", "max", "and", "or", "e6"}, name) {
				continue
			}
			names++
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !recorded[name] && !strings.HasPrefix(name, "process_") && !strings.HasPrefix(name, "go_") &&
				!strings.Contains(docs, "| `"+base+"` |") && !strings.Contains(docs, "| `"+name+"` |") {
				t.Errorf("%s: %s is no metric: %s", q.where, name, q.expr)
			}
		}
	}
	if names < 150 {
		t.Errorf("only %d names were found in %d queries", names, len(queries))
	}
}
