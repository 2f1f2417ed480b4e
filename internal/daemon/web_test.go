package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/status"
)

// startWeb runs a web server on a free port until the test ends.
func startWeb(t *testing.T, edit func(*WebConfig)) *Web {
	t.Helper()
	return startWebBefore(t, edit, nil)
}

// startWebBefore is startWeb for what must be added before it runs.
func startWebBefore(t *testing.T, edit func(*WebConfig), add func(*Web)) *Web {
	t.Helper()
	cfg := WebConfig{Interface: "127.0.0.1", Title: "nyala-tserver", Metrics: NewRegistry(), MetricsLevel: LevelInfo, Health: &Health{}, Logger: slog.New(slog.DiscardHandler)}
	cfg.Flags = newTestProgram().prog.Flags
	if edit != nil {
		edit(&cfg)
	}
	w, err := NewWeb(cfg)
	require.NoError(t, err)
	if add != nil {
		add(w)
	}
	require.NoError(t, w.Listen())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, w.Run(ctx)) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		http.DefaultClient.CloseIdleConnections()
	})
	return w
}

func get(t *testing.T, w *Web, path string, header ...string) (code int, body string, h http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.Address()+path, nil)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text), resp.Header
}

// TestMetrics shows both formats of /metrics, and that what is always there passes Prometheus' lint.
func TestMetrics(t *testing.T) {
	w := startWeb(t, nil)
	code, body, h := get(t, w, "/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, h.Get("Content-Type"), "text/plain")
	for _, name := range []string{"go_goroutines ", "process_start_time_seconds ", "build_info{"} {
		require.Contains(t, body, "\n"+name)
	}
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	require.NoError(t, err)
	problems = slices.DeleteFunc(problems, func(p promlint.Problem) bool { return p.Metric == "cpu_utime" || p.Metric == "cpu_stime" }) // Kudu's names
	require.Empty(t, problems)
	require.Regexp(t, `(?m)^cpu_utime [1-9]`, body)
	require.Contains(t, body, "# TYPE cpu_stime counter")
	_, body, h = get(t, w, "/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	require.Contains(t, h.Get("Content-Type"), "application/openmetrics-text")
	require.True(t, strings.HasSuffix(body, "# EOF\n"))
}

// TestHealth shows alive apart from ready, the first line saying what is wrong, and the JSON form.
func TestHealth(t *testing.T) {
	h := &Health{}
	w := startWeb(t, func(c *WebConfig) { c.Health = h })
	for _, path := range []string{"/healthz", "/readyz"} {
		code, body, _ := get(t, w, path)
		require.Equal(t, http.StatusOK, code)
		require.Equal(t, "ok\n", body)
	}
	notYet := errors.New("3 of 40 tablets are open")
	h.AddReady("tablets", func(context.Context) error { return notYet })
	h.AddReady("clock", func(context.Context) error { return nil })
	h.AddLive("wal", func(context.Context) error { return nil })
	code, body, _ := get(t, w, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "not ready: tablets: 3 of 40 tablets are open\nclock: ok\n", body)
	code, body, _ = get(t, w, "/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\nwal: ok\n", body)

	why := "fenced: the wall clock jumped"
	h.AddNote("clock", func() string { return why })
	code, body, _ = get(t, w, "/healthz")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "ok\nwal: ok\nclock: fenced: the wall clock jumped\n", body)
	_, body, _ = get(t, w, "/healthz?format=json")
	require.Contains(t, body, `"note": "fenced: the wall clock jumped"`)
	why = ""
	_, body, _ = get(t, w, "/healthz")
	require.Equal(t, "ok\nwal: ok\nclock: ok\n", body)

	code, body, head := get(t, w, "/readyz?format=json")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "application/json", head.Get("Content-Type"))
	var report HealthReport
	require.NoError(t, json.Unmarshal([]byte(body), &report))
	require.Equal(t, HealthReport{Checks: []CheckResult{{Name: "clock", OK: true}, {Name: "tablets", Error: "3 of 40 tablets are open"}}}, report)

	h.AddReady("tablets", func(context.Context) error { return nil })
	code, _, _ = get(t, w, "/readyz")
	require.Equal(t, http.StatusOK, code)
	h.SetStopping()
	code, body, _ = get(t, w, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "the server is stopping")
}

// TestVarz shows each flag with value and source, in HTML and JSON, and text in a value staying text.
func TestVarz(t *testing.T) {
	p := newTestProgram()
	require.Equal(t, ExitOK, p.run(t, append([]string{"--webserver_port=17", "--webserver_interface=<b>x"}, needed...)...))
	w := startWeb(t, func(c *WebConfig) { c.Flags = p.prog.Flags })
	code, body, h := get(t, w, "/varz")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, h.Get("Content-Type"), "text/html")
	require.Contains(t, body, `--webserver_port</td><td class="value set">17</td><td class="name">command line</td><td class="value">8050</td>`)
	require.Contains(t, body, "&lt;b&gt;x")
	require.NotContains(t, body, "<b>x")
	_, body, _ = get(t, w, "/varz?format=json")
	var v struct{ Flags []FlagInfo }
	require.NoError(t, json.Unmarshal([]byte(body), &v))
	require.Equal(t, p.prog.Flags.All(), v.Flags)
}

// TestIndex shows sections of others in their order, their errors, links, and the same as JSON.
func TestIndex(t *testing.T) {
	w := startWeb(t, nil)
	w.AddSection(Section{Title: "Later", Order: 2, Table: func(context.Context) (Table, error) { return Table{}, errors.New("no master <here>") }})
	w.AddSection(Section{Title: "Tablets", Order: 1, Table: func(context.Context) (Table, error) {
		return Table{Header: []string{"Table", "Tablets", "Id"}, Rows: [][]Cell{
			{{Text: "flights & co", Link: "/tables?id=1"}, {Text: "4"}, {Text: strings.Repeat("0", 32)}}, TextRow("…", "", ""),
		}}, nil
	}})
	w.AddSection(Section{Title: "Empty", Order: 1, Table: func(context.Context) (Table, error) { return Table{}, nil }})
	w.Link("/tables", "all tables")
	code, body, h := get(t, w, "/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'")
	require.Contains(t, body, `<th>Table</th><th class="number">Tablets</th><th>Id</th>`)
	require.Contains(t, body, `<td><a href="/tables?id=1">flights &amp; co</a></td><td class="number">4</td>`)
	require.Contains(t, body, `<td class="fact">version</td>`)
	require.Contains(t, body, `<p class="error">no master &lt;here&gt;</p>`)
	require.Contains(t, body, `<a href="/tables">/tables</a>`)
	require.Less(t, strings.Index(body, ">Server<"), strings.Index(body, ">Tablets<"))
	require.Less(t, strings.Index(body, ">Empty<"), strings.Index(body, ">Later<"))
	_, body, _ = get(t, w, "/?format=json")
	var p page
	require.NoError(t, json.Unmarshal([]byte(body), &p))
	require.Equal(t, "flights & co", p.Sections[1].Table.Rows[0][0].Text)
	code, _, _ = get(t, w, "/nowhere")
	require.Equal(t, http.StatusNotFound, code)
}

// TestPage shows a page about the thing that a request names, as HTML and as JSON, and that one about nothing is an error.
func TestPage(t *testing.T) {
	w := startWebBefore(t, nil, func(w *Web) {
		w.AddPage("/thing", func(r *http.Request) (Page, error) {
			switch id := r.URL.Query().Get("id"); id {
			case "1":
				return Page{Title: "<b>", Sections: []PageSection{{Title: "About", Table: Table{Rows: [][]Cell{TextRow("Name", "<script>")}}}}}, nil
			case "2":
				return Page{}, errors.New("not now")
			default:
				return Page{}, status.New(status.TableNotFound, "nothing is %q", id)
			}
		})
	})
	code, body, h := get(t, w, "/thing?id=1")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, h.Get("Content-Security-Policy"), "default-src 'none'")
	require.Contains(t, body, "<title>nyala-tserver: &lt;b&gt;</title>")
	require.Contains(t, body, `<tr><td class="fact">Name</td><td>&lt;script&gt;</td></tr>`)
	require.True(t, strings.HasSuffix(body, pageFoot), body)
	_, body, _ = get(t, w, "/thing?id=1&format=json")
	var p page
	require.NoError(t, json.Unmarshal([]byte(body), &p))
	require.Equal(t, "<script>", p.Sections[0].Table.Rows[0][1].Text)
	code, body, h = get(t, w, "/thing?id=<script>")
	require.Equal(t, http.StatusNotFound, code)
	require.Contains(t, h.Get("Content-Type"), "text/plain")
	require.Equal(t, "nothing is \"<script>\"\n", body)
	code, _, _ = get(t, w, "/thing?id=2")
	require.Equal(t, http.StatusServiceUnavailable, code)
}

// TestPprof shows that profiles are there for callers from here, and for whom else.
func TestPprof(t *testing.T) {
	w := startWeb(t, nil)
	code, body, _ := get(t, w, "/debug/pprof/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "goroutine")
	code, body, _ = get(t, w, "/debug/pprof/?format=json")
	require.Equal(t, http.StatusOK, code)
	var list struct{ Profiles []profileInfo }
	require.NoError(t, json.Unmarshal([]byte(body), &list))
	for _, p := range list.Profiles {
		if p.Name == "heap" || p.Name == "goroutine" {
			code, _, _ = get(t, w, p.Path)
			require.Equal(t, http.StatusOK, code)
		}
	}
	require.Greater(t, len(list.Profiles), 6)

	common := DefaultCommon(TabletServerDefaults)
	byDefault := &Web{cfg: common.WebConfig()}
	common.RPCLimits.TrustedSubnets = nil
	nobody := &Web{cfg: common.WebConfig()}
	common.RPCLimits.TrustedSubnets = []string{"8.8.8.0/24"}
	some := &Web{cfg: common.WebConfig()}
	for addr, want := range map[string][3]bool{
		"127.0.0.1": {true, true, true}, "::1": {true, true, true},
		"10.1.2.3": {true, false, false}, "192.168.0.9": {true, false, false}, "fe80::1%eth0": {true, false, false}, "fd00::1": {true, false, false},
		"8.8.8.8": {false, false, true}, "2001:db8::1": {false, false, false}, "172.32.0.1": {false, false, false},
	} {
		a := netip.MustParseAddr(addr)
		require.Equal(t, want, [3]bool{byDefault.trusts(a), nobody.trusts(a), some.trusts(a)}, addr)
	}
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodGet, "/debug/pprof/heap", nil)
	req.RemoteAddr = "8.8.8.8:1"
	byDefault.trusted(http.HandlerFunc(pprof.Index)).ServeHTTP(rec, req)
	require.Equal(t, http.StatusForbidden, rec.Code)
	require.Contains(t, rec.Body.String(), "--trusted_subnets")
}

// TestRPCZ shows calls under way and slow ones on the page and as JSON, with a caller's words staying words.
func TestRPCZ(t *testing.T) {
	start := time.Now().Add(-time.Second)
	w := startWebBefore(t, nil, func(w *Web) {
		w.AddCalls(func() []rpc.MethodCalls {
			return []rpc.MethodCalls{
				{Method: "Idle"},
				{Method: "Write", UnderWay: []rpc.CallUnderWay{
					{From: "1.2.3.4:5", Since: start, Expires: time.Now().Add(time.Hour)}, {From: "1.2.3.4:6", Since: start, Waits: true},
				}, Slow: []rpc.SlowCalls{{AtLeast: time.Second, Count: 7, Last: rpc.SlowCall{
					From: "1.2.3.4:5", Since: start, Waited: 250 * time.Millisecond, Took: 1500 * time.Millisecond, Error: "<b>no",
				}}}},
			}
		})
	})
	_, body, _ := get(t, w, "/rpcz")
	for _, want := range []string{"1.2.3.4:6</td><td>waiting</td>", ">never<", "&lt;b&gt;no", ">1500<", ">250<"} {
		require.Contains(t, body, want)
	}
	require.Regexp(t, `>\d+(\.\d+)?s</td>`, body)
	require.Equal(t, []string{"0s", "12.35ms", "3m48.38s"}, []string{durationText(0.001), durationText(12.3456), durationText(228382.76)})
	_, body, _ = get(t, w, "/rpcz?format=json")
	var all struct{ Methods []rpczMethod }
	require.NoError(t, json.Unmarshal([]byte(body), &all))
	require.Equal(t, "Idle", all.Methods[0].Method)
	under := all.Methods[1].UnderWay
	require.Equal(t, "working", under[0].State)
	require.Equal(t, "waiting", under[1].State)
	require.Greater(t, under[0].ForMs, 999.0)
	require.InDelta(t, 3600e3, under[0].ExpiresMs, 600e3)
	require.Equal(t, uint64(7), all.Methods[1].Slow[0].Count)
}

// TestWebPortTaken shows the error for a port that someone has.
func TestWebPortTaken(t *testing.T) {
	first := startWeb(t, nil)
	_, port, err := net.SplitHostPort(first.Address())
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	second, err := NewWeb(WebConfig{Interface: "127.0.0.1", Port: n})
	require.NoError(t, err)
	err = second.Listen()
	require.ErrorContains(t, err, "listen on "+first.Address()+": the port is taken")
	require.ErrorContains(t, err, "--webserver_port")
	require.ErrorContains(t, second.Run(t.Context()), "the port is taken")
	_, err = NewWeb(WebConfig{Port: 70000})
	require.ErrorContains(t, err, "--webserver_port")
}

// TestAdvertised is a table of where others are told the web server is.
func TestAdvertised(t *testing.T) {
	for _, c := range []struct {
		webInterface, want string
		configured         []string
	}{
		{"127.0.0.1", "127.0.0.1:PORT", nil},
		{"0.0.0.0", "ts.example.com:PORT", nil},
		{"", "ts.example.com:PORT", nil},
		{"0.0.0.0", "other.example.com:80", []string{"other.example.com:80"}},
	} {
		w, err := NewWeb(WebConfig{Interface: c.webInterface, Advertised: c.configured})
		require.NoError(t, err)
		require.NoError(t, w.Listen())
		_, port, err := net.SplitHostPort(w.Address())
		require.NoError(t, err)
		require.NoError(t, w.advertise("ts.example.com:7050"))
		require.Equal(t, []string{strings.Replace(c.want, "PORT", port, 1)}, w.AdvertisedAddresses(), c.webInterface)
		w.Close()
	}
}

// TestPanickingPage shows that a page, or a metric, that panics becomes an error with a stack in the log, and that the
// server goes on.
func TestPanickingPage(t *testing.T) {
	var buf syncBuffer
	w := startWeb(t, func(c *WebConfig) {
		c.Logger = slog.New(slog.NewTextHandler(&buf, nil))
		c.Metrics.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "bad", Help: "x"}, func() float64 { panic("no value") }))
	})
	code, body, _ := get(t, w, "/metrics")
	require.Equal(t, http.StatusInternalServerError, code)
	require.Contains(t, body, "internal error: no value")
	require.Contains(t, buf.String(), "web_test.go")
	code, _, _ = get(t, w, "/")
	require.Equal(t, http.StatusOK, code)
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
