package buildinfo

import (
	"strings"
	"testing"
)

// TestGet shows that every field says something, with and without the linker's help, and that the linker's word counts.
func TestGet(t *testing.T) {
	i := Get()
	if i.Version != "development" || i.Commit == "" || i.Date == "" || i.Go == "" || !strings.Contains(i.Platform, "/") {
		t.Errorf("%+v", i)
	}
	version, commit, date = "v1.2.3", "abc", "2026-01-02T03:04:05Z"
	t.Cleanup(func() { version, commit, date = "", "", "" })
	if got := Get().String(); !strings.HasPrefix(got, "v1.2.3 (commit abc, built 2026-01-02T03:04:05Z, go") {
		t.Error(got)
	}
}
