package daemon

import (
	"cmp"
	"net/http"
	"net/http/pprof"
	"net/netip"
	rpprof "runtime/pprof"
	"slices"
)

// addPprof serves Go's profiles, which show a program's insides and cost it time, to callers from trusted subnets alone.
func (w *Web) addPprof() {
	for pattern, h := range map[string]http.HandlerFunc{
		"/debug/pprof/":        servePprof,
		"/debug/pprof/cmdline": pprof.Cmdline,
		"/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/trace":   pprof.Trace,
	} {
		w.mux.Handle(pattern, w.trusted(h))
	}
	w.Link("/debug/pprof/", "profiles, for callers on this machine or in --trusted_subnets")
}

// profileInfo is one profile in the JSON form of /debug/pprof/.
type profileInfo struct {
	Name  string `json:"name"`
	Count int    `json:"count"` // of what it lists: goroutines, allocations
	Path  string `json:"path"`
}

// servePprof serves the list of profiles, and those that have no handler of their own.
func servePprof(rw http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/debug/pprof/" || !wantsJSON(r) {
		pprof.Index(rw, r)
		return
	}
	list := []profileInfo{{Name: "profile", Path: "/debug/pprof/profile?seconds=30"}, {Name: "trace", Path: "/debug/pprof/trace?seconds=5"}}
	for _, p := range rpprof.Profiles() {
		list = append(list, profileInfo{Name: p.Name(), Count: p.Count(), Path: "/debug/pprof/" + p.Name()})
	}
	slices.SortFunc(list, func(a, b profileInfo) int { return cmp.Compare(a.Name, b.Name) })
	serveJSON(rw, http.StatusOK, map[string]any{"profiles": list})
}

// trusted lets callers in that are on this machine or in a trusted subnet.
func (w *Web) trusted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !w.trusts(from.Addr().Unmap()) {
			http.Error(rw, "profiles are shown to callers on this machine or in --trusted_subnets alone", http.StatusForbidden)
			return
		}
		h.ServeHTTP(rw, r)
	})
}

func (w *Web) trusts(a netip.Addr) bool {
	return a.IsLoopback() || slices.ContainsFunc(w.cfg.TrustedSubnets, func(p netip.Prefix) bool { return p.Contains(a.WithZone("")) })
}
