package daemon

import (
	"net/http"
	"net/http/pprof"
	"net/netip"
)

// addPprof serves Go's profiles, which show a program's insides and cost it time, to nearby callers alone.
func (w *Web) addPprof() {
	for pattern, h := range map[string]http.HandlerFunc{
		"/debug/pprof/":        pprof.Index,
		"/debug/pprof/cmdline": pprof.Cmdline,
		"/debug/pprof/profile": pprof.Profile,
		"/debug/pprof/symbol":  pprof.Symbol,
		"/debug/pprof/trace":   pprof.Trace,
	} {
		w.mux.Handle(pattern, nearby(h))
	}
	w.Link("/debug/pprof/", "profiles, for callers on this machine or a private network")
}

// nearby lets callers in whose address is on this machine or a private network.
func nearby(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ap, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !isNearby(ap.Addr().Unmap()) {
			http.Error(rw, "profiles are shown to callers on this machine or a private network alone", http.StatusForbidden)
			return
		}
		h.ServeHTTP(rw, r)
	})
}

func isNearby(a netip.Addr) bool { return a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() }
