package daemon

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// helpWidth is where --help breaks lines.
const helpWidth = 100

// writeHelp writes --help: what the program is, an example, and its flags by group.
func (p Program) writeHelp(w io.Writer) {
	fmt.Fprintf(w, "%s: %s\n\nUsage:\n  %s --name=value …\n", p.Name, p.Summary, p.Name)
	if p.Example != "" {
		fmt.Fprintf(w, "\nFor example:\n  %s\n", strings.ReplaceAll(p.Example, "\n", "\n  "))
	}
	fmt.Fprintf(w, "\nA flag may also stand in the environment (%sFS_WAL_DIR for --fs_wal_dir) or in a YAML file (--config).\n"+
		"The command line counts more than the environment, that more than the file. Dashes are taken for underscores.\n", EnvironmentPrefix)
	group := ""
	for _, f := range p.Flags.All() {
		if slices.Contains(f.Tags, Hidden) {
			continue
		}
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(w, "\n%s:\n", group)
		}
		fmt.Fprintf(w, "  --%s %s\n", f.Name, describe(f))
		for _, line := range wrap(f.Help, helpWidth-6) {
			fmt.Fprintf(w, "      %s\n", line)
		}
	}
	fmt.Fprintf(w, "\nAlso:\n  --help\n  --version\n")
}

// describe is what stands beside a flag's name: "(int, 1 to 10; default 3; advanced)".
func describe(f FlagInfo) string {
	parts := []string{f.Type}
	if f.Accepted != "" {
		parts[0] += ", " + f.Accepted
	}
	switch {
	case f.Required:
		parts = append(parts, "needed")
	case f.Default == "":
		parts = append(parts, "not set")
	default:
		parts = append(parts, "default "+f.Default)
	}
	if len(f.Tags) > 0 && !slices.Equal(f.Tags, []Tag{Stable}) {
		tags := make([]string, len(f.Tags))
		for i, t := range f.Tags {
			tags[i] = string(t)
		}
		parts = append(parts, strings.Join(tags, ", "))
	}
	return "(" + strings.Join(parts, "; ") + ")"
}

// wrap breaks text between words into lines of at most width bytes, where words allow it.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
