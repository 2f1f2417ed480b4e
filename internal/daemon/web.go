package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nyaladb/nyala/internal/rpc"
)

// WebConfig is what the web server of a daemon may be told.
type WebConfig struct {
	Interface string // --webserver_interface: a host name or address, empty for all
	Port      int    // --webserver_port, 0: any free one
	// Advertised are where others reach it, host:port each (--webserver_advertised_addresses); empty: see advertise.
	Advertised []string

	// MetricsLevel is that of /metrics where the request names none (--metrics_default_level); SetMetricsLevel changes it.
	MetricsLevel Level
	// TrustedSubnets are where callers may come from who see profiles, beside this machine (--trusted_subnets).
	TrustedSubnets []netip.Prefix

	Title   string       // what stands above each page: "nyala-tserver"
	Metrics *Registry    // what /metrics shows; nil: no /metrics
	Flags   *Flags       // what /varz shows; nil: no /varz
	Health  *Health      // nil: always alive and ready
	Logger  *slog.Logger // nil: slog.Default()
}

// Web is the web server of a daemon: /metrics, /healthz, /readyz, /varz, /debug/pprof and an index page, and what else is
// added with Handle, Link, AddSection and AddCalls.
type Web struct {
	cfg   WebConfig
	log   *slog.Logger
	mux   *http.ServeMux
	start time.Time
	level atomic.Int32 // a Level

	mu       sync.Mutex
	ln       net.Listener
	ran      bool
	links    []link
	sections []Section
}

// NewWeb returns a web server that listens nowhere yet.
func NewWeb(cfg WebConfig) (*Web, error) {
	if cfg.Port < 0 || cfg.Port > 65535 {
		return nil, fmt.Errorf("web server: port %d: want 0 to 65535 (--webserver_port)", cfg.Port)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Health == nil {
		cfg.Health = &Health{}
	}
	w := &Web{cfg: cfg, log: cfg.Logger, mux: http.NewServeMux(), start: time.Now()}
	w.SetMetricsLevel(cfg.MetricsLevel)
	w.mux.HandleFunc("GET /{$}", w.serveIndex)
	w.mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, r *http.Request) { serveHealth(rw, r, "alive", cfg.Health.Live) })
	w.mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, r *http.Request) { serveHealth(rw, r, "ready", cfg.Health.Ready) })
	w.links = []link{{"/healthz", "is it alive"}, {"/readyz", "may it be given work"}}
	if cfg.Metrics != nil {
		w.addMetrics()
	}
	if cfg.Flags != nil {
		w.mux.HandleFunc("GET /varz", w.serveVarz)
		w.mux.HandleFunc("POST /varz", w.serveSetVarz)
		w.Link("/varz", "flags, with what is in force and where it comes from")
	}
	w.addPprof()
	return w, nil
}

// Handle serves a pattern in the form of http.ServeMux. It must come before Run.
func (w *Web) Handle(pattern string, h http.Handler) { w.mux.Handle(pattern, h) }

// Listen binds the port, so that Address is known. Without it Run does it.
func (w *Web) Listen() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ln != nil {
		return nil
	}
	if w.ran {
		return errors.New("web server: it was stopped")
	}
	address := net.JoinHostPort(w.cfg.Interface, strconv.Itoa(w.cfg.Port))
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return rpc.DescribeListenError(address, err, "--webserver_port or --webserver_interface")
	}
	w.ln = ln
	return nil
}

// Address returns host:port as bound, empty before Listen.
func (w *Web) Address() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ln == nil {
		return ""
	}
	return w.ln.Addr().String()
}

// advertise finds where others reach the web server once it is bound: where all of the machine's addresses are bound and
// nothing was said, at the host of rpcAddress, where others reach this server for calls.
func (w *Web) advertise(rpcAddress string) error {
	if len(w.cfg.Advertised) > 0 {
		return nil
	}
	bound := w.Address()
	host, port, err := net.SplitHostPort(bound)
	if err != nil {
		return fmt.Errorf("web server's address: %w", err)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		if host, _, err = net.SplitHostPort(rpcAddress); err != nil {
			return fmt.Errorf("web server's address: %w", err)
		}
		bound = net.JoinHostPort(host, port)
	}
	w.cfg.Advertised = []string{bound}
	return nil
}

// AdvertisedAddresses are where others reach the web server, host:port each.
func (w *Web) AdvertisedAddresses() []string { return w.cfg.Advertised }

// webStopTimeout bounds what requests under way may take once the server stops.
const webStopTimeout = 2 * time.Second

// Run serves until ctx ends. It runs once.
func (w *Web) Run(ctx context.Context) error {
	if err := w.Listen(); err != nil {
		return err
	}
	w.mu.Lock()
	if w.ran {
		w.mu.Unlock()
		return errors.New("web server: it runs once")
	}
	w.ran = true
	ln := w.ln
	w.mu.Unlock()
	srv := &http.Server{
		Handler:           w.harden(w.mux),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(w.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(&httpListener{Listener: ln, log: w.log}) }()
	select {
	case err := <-served:
		return fmt.Errorf("web server on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), webStopTimeout)
	defer cancel()
	if err := srv.Shutdown(sctx); err != nil {
		srv.Close() // who still reads a page then doesn't hold up the stop
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close gives back the port of a server that never ran.
func (w *Web) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ln != nil && !w.ran {
		w.ln.Close()
	}
	w.ran = true
}

// harden sets the headers that keep a page from being more than a page, bounds what a request may send, and turns a panic
// into an error with its stack in the log: a page that meets a bug says so, and the server goes on.
func (w *Web) harden(h http.Handler) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("X-Content-Type-Options", "nosniff")
		rw.Header().Set("X-Frame-Options", "DENY")
		rw.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'")
		r.Body = http.MaxBytesReader(rw, r.Body, 1<<20)
		defer func() {
			if p := recover(); p != nil {
				w.log.Error("page panicked", "path", r.URL.Path, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
				http.Error(rw, fmt.Sprintf("internal error: %v: a bug in the server, whose log has the stack", p), http.StatusInternalServerError)
			}
		}()
		h.ServeHTTP(rw, r)
	})
}

func wantsJSON(r *http.Request) bool { return r.URL.Query().Get("format") == "json" }

func serveJSON(rw http.ResponseWriter, code int, v any) {
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set("Cache-Control", "no-store")
	rw.WriteHeader(code)
	enc := json.NewEncoder(rw)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // who asked has gone
}

// serveHealth answers 200 or 503. The first line of the text says in full what is wrong first.
func serveHealth(rw http.ResponseWriter, r *http.Request, what string, check func(context.Context) HealthReport) {
	report := check(r.Context())
	code := http.StatusOK
	if !report.OK {
		code = http.StatusServiceUnavailable
	}
	if wantsJSON(r) {
		serveJSON(rw, code, report)
		return
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.Header().Set("Cache-Control", "no-store")
	rw.WriteHeader(code)
	if report.OK {
		fmt.Fprintln(rw, "ok")
	}
	for _, c := range report.Checks {
		if !c.OK {
			fmt.Fprintf(rw, "not %s: %s: %s\n", what, c.Name, c.Error)
		}
	}
	for _, c := range report.Checks {
		if c.OK {
			fmt.Fprintf(rw, "%s: %s\n", c.Name, cmp.Or(c.Note, "ok"))
		}
	}
}
