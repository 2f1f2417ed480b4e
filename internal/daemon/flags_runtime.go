package daemon

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
)

// FromRuntime is the source of a value that was set while the daemon ran. It lasts until the daemon ends.
const FromRuntime = Source("runtime")

// ErrNotRuntime is returned for a flag that can't be changed while the daemon runs.
var ErrNotRuntime = errors.New("can't be changed while the daemon runs")

// OnChange has apply put a new value of a flag that is tagged Runtime into force: by then the flag's variable holds it.
// An error takes the change back.
func (f *Flags) OnChange(name string, apply func() error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.apply == nil {
		f.apply = map[string]func() error{}
	}
	f.apply[name] = apply
}

// Change gives a flag another value while the daemon runs.
func (f *Flags) Change(name, text string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fl := f.byName[string(normalize(nil, name))]
	switch {
	case fl == nil:
		return fmt.Errorf("unknown flag --%s%s", name, f.suggestion(name))
	case !slices.Contains(fl.Tags, Runtime) || f.apply[fl.Name] == nil:
		return fmt.Errorf("--%s: %w", fl.Name, ErrNotRuntime)
	case slices.Contains(fl.Tags, Unsafe) && !f.unlockUnsafe:
		return fmt.Errorf("--%s is unsafe: it is changed only in a daemon that was started with --unlock_unsafe_flags", fl.Name)
	}
	before := fl.get()
	if err := fl.Set(text); err != nil {
		return fmt.Errorf("--%s: %q: %w", fl.Name, text, err)
	}
	if err := f.apply[fl.Name](); err != nil {
		if uerr := fl.Set(before); uerr != nil {
			err = errors.Join(err, uerr)
		}
		return fmt.Errorf("--%s: %q: %w", fl.Name, text, err)
	}
	fl.Source = FromRuntime
	return nil
}

// serveSetVarz changes flags: POST /varz?name=value. Only a process on this machine may, and no page that a browser on it
// shows: that would come from another origin, or, by a name that was bent to this address, with that name as its host.
func (w *Web) serveSetVarz(rw http.ResponseWriter, r *http.Request) {
	if !fromThisMachine(r) {
		http.Error(rw, "flags are changed from the server's own machine: curl -X POST http://127.0.0.1:…/varz?name=value", http.StatusForbidden)
		return
	}
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		http.Error(rw, err.Error(), http.StatusForbidden)
		return
	}
	query := r.URL.Query()
	if len(query) == 0 {
		http.Error(rw, "say which: /varz?name=value", http.StatusBadRequest)
		return
	}
	for name, values := range query {
		for _, v := range values {
			if err := w.cfg.Flags.Change(name, v); err != nil {
				http.Error(rw, err.Error(), http.StatusBadRequest)
				return
			}
			w.log.Info("flag changed", "name", name, "value", v)
			fmt.Fprintf(rw, "--%s=%s\n", name, v)
		}
	}
}

// fromThisMachine says whether a request came over loopback, and was sent to an address and not to some name.
func fromThisMachine(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return false
	}
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	_, err = netip.ParseAddr(host)
	return err == nil || host == "localhost"
}
