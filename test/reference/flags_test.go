package reference

import (
	"slices"
	"strings"

	"github.com/nyaladb/nyala/internal/daemon"
)

// flagGroup is one table of docs/flags.md.
type flagGroup struct {
	Title string
	Flags []flagRow
}

type flagRow struct {
	daemon.FlagInfo
	Defaults string // of both daemons
	TagText  string
	Only     string // the daemon that alone has it; empty: both
}

// mergeFlags makes one list of the flags of both daemons: the master's in their order, the tablet server's own behind.
func mergeFlags(master, tserver []daemon.FlagInfo) []flagGroup {
	var groups []flagGroup
	add := func(row flagRow) {
		i := slices.IndexFunc(groups, func(g flagGroup) bool { return g.Title == row.Group })
		if i < 0 {
			i = len(groups)
			groups = append(groups, flagGroup{Title: row.Group})
		}
		groups[i].Flags = append(groups[i].Flags, row)
	}
	for _, f := range master {
		i := slices.IndexFunc(tserver, func(o daemon.FlagInfo) bool { return o.Name == f.Name })
		row := flagRow{FlagInfo: f, Defaults: defaultText(f), TagText: tagText(f.Tags)}
		switch {
		case i < 0:
			row.Only = "nyala-master"
		case tserver[i].Default != f.Default:
			row.Defaults = defaultText(f) + " (master), " + defaultText(tserver[i]) + " (tserver)"
		}
		add(row)
	}
	for _, f := range tserver {
		if !slices.ContainsFunc(master, func(o daemon.FlagInfo) bool { return o.Name == f.Name }) {
			add(flagRow{FlagInfo: f, Defaults: defaultText(f), TagText: tagText(f.Tags), Only: "nyala-tserver"})
		}
	}
	for i := range groups {
		g := &groups[i]
		g.Flags = slices.DeleteFunc(g.Flags, func(r flagRow) bool { return slices.Contains(r.Tags, daemon.Hidden) })
		// Where the whole group is one daemon's, the title says it.
		if !slices.ContainsFunc(g.Flags, func(r flagRow) bool { return r.Only != g.Flags[0].Only }) {
			for j := range g.Flags {
				g.Flags[j].Only = ""
			}
		}
	}
	return groups
}

func defaultText(f daemon.FlagInfo) string {
	switch {
	case f.Required:
		return "needed"
	case f.Default == "":
		return ""
	}
	return "`" + f.Default + "`"
}

func tagText(tags []daemon.Tag) string {
	var out []string
	for _, t := range tags {
		if t != daemon.Stable {
			out = append(out, string(t))
		}
	}
	return strings.Join(out, ", ")
}
