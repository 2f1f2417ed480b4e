package cli

import (
	"fmt"
	"io"
	"strings"
)

// print writes the report for people. Replicas are shown of tablets that aren't healthy, or of all.
func (r *ksckReport) print(w io.Writer, all bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Cluster %s\n\nMasters\n", r.ClusterID)
	masters := indented("RPC", "STATE", "ROLE", "UUID", "VERSION", "DETAIL")
	for _, m := range r.Masters {
		masters.add(m.RPC, m.State, m.Role, orDash(m.UUID), shortVersion(m.Version), m.Detail)
	}
	servers := indented("RPC", "STATE", "REPLICAS", "LEADERS", "UUID", "VERSION", "DETAIL").numbers(2, 3)
	for _, s := range r.Servers {
		servers.add(s.RPC, s.State, s.Replicas, s.Leaders, s.UUID, shortVersion(s.Version), s.Detail)
	}
	tables := indented("NAME", "STATE", "REPLICAS", "TABLETS", "HEALTHY", "RECOVERING", "MISMATCH", "UNDER-REPL.", "UNAVAILABLE", "DETAIL").
		numbers(2, 3, 4, 5, 6, 7, 8)
	for _, t := range r.Tables {
		h := t.Health
		tables.add(t.Name, t.State, t.Replicas, t.Tablets, h[healthy], h[recovering], h[mismatch], h[underReplicated], h[unavailable], t.Detail)
	}
	if err := r.section(&b, masters, "", "none"); err != nil {
		return err
	}
	if err := r.section(&b, servers, "\nTablet servers\n", "none"); err != nil {
		return err
	}
	if err := r.section(&b, tables, "\nTables\n", "none"); err != nil {
		return err
	}
	if err := r.printTablets(&b, all); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s, %s (%d running), %s\n", plural(len(r.Tablets), "tablet"), plural(r.Replicas, "replica"), r.Running,
		plural(r.Leaders, "leader"))
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "  ! %s\n", printable(p))
	}
	fmt.Fprintf(&b, "%s\n", r.Verdict)
	_, err := io.WriteString(w, b.String())
	return err
}

func indented(header ...string) *grid {
	g := newGrid(header...)
	g.indent = "  "
	return g
}

// section writes a title and a grid, or a word in its place where it is empty.
func (r *ksckReport) section(w io.Writer, g *grid, title, empty string) error {
	if _, err := io.WriteString(w, title); err != nil {
		return err
	}
	if len(g.rows) == 0 {
		_, err := fmt.Fprintf(w, "  %s\n", empty)
		return err
	}
	return g.print(w)
}

func (r *ksckReport) printTablets(w io.Writer, all bool) error {
	for _, t := range r.Tablets {
		if t.Health == healthy && !all {
			continue
		}
		g := indented("SERVER", "STATE", "ROLE", "TERM", "LAST", "COMMITTED", "APPLIED", "UUID").numbers(3, 4, 5, 6)
		g.indent = "    "
		for _, rep := range t.Replicas {
			g.add(rep.RPC, rep.State, rep.Role, rep.Term, rep.Last, rep.Committed, rep.Applied, rep.UUID)
		}
		title := fmt.Sprintf("\nTablet %s of table %s: %s\n", t.ID, printable(quoteName(t.Table)), t.Health)
		if err := r.section(w, g, title, "  no replicas"); err != nil {
			return err
		}
	}
	return nil
}

// shortVersion is the first word of a version: what it was built from stands behind it.
func shortVersion(v string) string {
	word, _, _ := strings.Cut(v, " ")
	return orDash(word)
}
