package daemon

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/internal/rpc"
)

// TestRPCLimits shows the flags reaching the server's config, and what they refuse.
func TestRPCLimits(t *testing.T) {
	c := DefaultCommon(MasterDefaults)
	c.WALDir = t.TempDir()
	require.NoError(t, c.Validate())
	require.NoError(t, c.ServerConfig().Validate())
	trusted, err := rpc.ParseSubnets(rpc.DefaultTrustedSubnets)
	require.NoError(t, err)
	require.Equal(t, trusted, c.ServerConfig().TrustedSubnets)

	f := NewFlags()
	c.Register(f)
	set := func(name, value string) error { return f.byName[name].Set(value) }
	for name, values := range map[string][]string{
		"rpc_max_connections":                {"0", "-2", "x"},
		"rpc_max_connections_per_address":    {"0", "-2"},
		"rpc_listen_socket_stats_every_log2": {"-2", "31"},
		"rpc_num_acceptors_per_address":      {"0"},
		"rpc_service_queue_length":           {"0"},
		"trusted_subnets":                    {"10.0.0.0/33", "here"},
		"rpc_acceptor_listen_backlog":        {"0", "-2"},
	} {
		for _, v := range values {
			require.Error(t, set(name, v), "%s=%s", name, v)
		}
	}
	require.NoError(t, set("trusted_subnets", "203.0.113.0/24, fc00::/7"))
	require.NoError(t, set("rpc_num_acceptors_per_address", "4"))
	require.NoError(t, set("rpc_default_keepalive_time_ms", "-1"))
	s := c.ServerConfig()
	require.Equal(t, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("fc00::/7")}, s.TrustedSubnets)
	require.Equal(t, 4, s.Acceptors)
	require.Negative(t, s.IdleTimeout)
	require.NoError(t, s.Validate())
	require.NoError(t, set("trusted_subnets", ""))
	require.NotNil(t, c.ServerConfig().TrustedSubnets, "nobody, and not the default")
	require.Empty(t, c.ServerConfig().TrustedSubnets)
}

// TestChange shows a runtime flag changed and put into force, a change that fails taken back, and other flags left alone.
func TestChange(t *testing.T) {
	f := NewFlags()
	n, other, inForce := 0, 0, 0
	var refuse error
	f.Group("G").Int(&n, "n", "a number", Tagged(Runtime), Between(-1, 9))
	f.Group("G").Int(&other, "other", "another one")
	require.ErrorIs(t, f.Change("n", "1"), ErrNotRuntime, "nobody would put it into force")
	f.OnChange("n", func() error {
		if refuse != nil {
			return refuse
		}
		inForce = n
		return nil
	})
	require.NoError(t, f.Change("n", "3"))
	require.Equal(t, 3, inForce)
	require.Equal(t, FromRuntime, f.byName["n"].Source)
	require.ErrorContains(t, f.Change("n", "10"), "-1 to 9")
	require.ErrorIs(t, f.Change("other", "1"), ErrNotRuntime)
	risky := 0
	f.Group("G").Int(&risky, "risky", "for tests", Tagged(Runtime, Unsafe))
	f.OnChange("risky", func() error { return nil })
	require.ErrorContains(t, f.Change("risky", "1"), "--unlock_unsafe_flags")
	f.unlockUnsafe = true
	require.NoError(t, f.Change("risky", "1"))
	require.Equal(t, 1, risky)
	require.ErrorContains(t, f.Change("otter", "1"), "did you mean --other")
	refuse = errors.New("not now")
	require.ErrorIs(t, f.Change("n", "4"), refuse)
	require.Equal(t, 3, n)
}

// TestNotHTTP shows connections closed at once that don't begin like a request, and requests answered whatever their method.
func TestNotHTTP(t *testing.T) {
	w := startWeb(t, nil)
	speak := func(send string) string {
		conn, err := net.Dial("tcp", w.Address())
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Second)))
		_, err = io.WriteString(conn, send)
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		return string(answer)
	}
	for _, send := range []string{"\x16\x03\x01\x02\x00", "hrpc\x09", "\xff\xff\xff\xff", "\x00"} {
		require.Empty(t, speak(send))
	}
	require.Contains(t, speak("GET /healthz HTTP/1.0\r\n\r\n"), "200 OK")
	require.Contains(t, speak("BREW /healthz HTTP/1.0\r\n\r\n"), "405 Method Not Allowed")
}

// TestSetVarz shows who may change a flag over the web port: a process on the same machine, but not a page in its browser.
func TestSetVarz(t *testing.T) {
	f := NewFlags()
	n := 0
	f.Group("G").Int(&n, "n", "a number", Tagged(Runtime))
	f.OnChange("n", func() error { return nil })
	w, err := NewWeb(WebConfig{Flags: f, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	post := func(edit func(*http.Request)) (int, string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:8050/varz?n=5", http.NoBody)
		r.RemoteAddr = "127.0.0.1:1"
		edit(r)
		rec := httptest.NewRecorder()
		w.mux.ServeHTTP(rec, r)
		body, err := io.ReadAll(rec.Body)
		require.NoError(t, err)
		return rec.Code, string(body)
	}
	for name, edit := range map[string]func(*http.Request){
		"another machine": func(r *http.Request) { r.RemoteAddr = "10.0.0.1:1" },
		"another origin":  func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"a bent name":     func(r *http.Request) { r.Host = "evil.example.com:8050" },
	} {
		code, _ := post(edit)
		require.Equal(t, http.StatusForbidden, code, name)
		require.Zero(t, n)
	}
	for _, query := range []string{"", "n=x", "m=1"} {
		code, body := post(func(r *http.Request) { r.URL.RawQuery = query })
		require.Equal(t, http.StatusBadRequest, code, body)
	}
	code, body := post(func(*http.Request) {})
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "--n=5", strings.TrimSpace(body))
	require.Equal(t, 5, n)
	code, _ = post(func(r *http.Request) { r.Host, r.RemoteAddr, r.URL.RawQuery = "localhost:8050", "[::1]:1", "n=6" })
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, 6, n)
}
