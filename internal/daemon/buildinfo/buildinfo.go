package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set by the linker with -X; empty otherwise.
var (
	version string // a release's name, v1.2.3
	commit  string // the commit it was built from
	date    string // when, RFC 3339
)

// Info is what is known of this build. Every field is set; "unknown" stands for what nobody said.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get returns this build's.
func Get() Info {
	i := Info{Version: version, Commit: commit, Date: date, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if bi, ok := debug.ReadBuildInfo(); ok {
		dirty := false
		for _, s := range bi.Settings {
			switch s.Key {
			case "vcs.revision":
				i.Commit = or(i.Commit, s.Value)
			case "vcs.time":
				i.Date = or(i.Date, s.Value)
			case "vcs.modified":
				dirty = s.Value == "true"
			}
		}
		if dirty && commit == "" && i.Commit != "" {
			i.Commit += "+changes"
		}
	}
	i.Version, i.Commit, i.Date = or(i.Version, "development"), or(i.Commit, "unknown"), or(i.Date, "unknown")
	return i
}

// String is one line: "v1.2.3 (commit 0123abcd, built 2026-01-02T03:04:05Z, go1.26.0, linux/amd64)".
func (i Info) String() string {
	return fmt.Sprintf("%s (commit %s, built %s, %s, %s)", i.Version, i.Commit, i.Date, i.Go, i.Platform)
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
