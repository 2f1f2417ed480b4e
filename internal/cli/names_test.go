package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

// TestParseNames shows lists of names, plain and quoted.
func TestParseNames(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"a", []string{"a"}},
		{" a , b c ,d", []string{"a", "b c", "d"}},
		{`"a,b"," ""c""",d`, []string{"a,b", ` "c"`, "d"}},
		{`""`, []string{""}},
	} {
		got, err := parseNames(c.in)
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, got, c.in)
	}
	for _, in := range []string{"", "a,", ",a", `"a`, `"a"b`, `a"b"`, "a:3"} {
		_, err := parseNames(in)
		require.Error(t, err, in)
	}
}

// TestParseHash shows dimensions of hash partitioning.
func TestParseHash(t *testing.T) {
	for _, c := range []struct {
		in   string
		want client.HashPartition
	}{
		{"id:4", client.HashPartition{Columns: []string{"id"}, Buckets: 4}},
		{"a, b : 8", client.HashPartition{Columns: []string{"a", "b"}, Buckets: 8}},
		{`"a:1":2:42`, client.HashPartition{Columns: []string{"a:1"}, Buckets: 2, Seed: 42}},
	} {
		got, err := parseHash(c.in)
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, got, c.in)
	}
	for _, in := range []string{"", "id", "id:", "id:x", "id:1", "id:-1", "id:2:", "id:2:-1", "id:2:4294967296", "id:2:3:4", ":4", `"id"x:4`} {
		_, err := parseHash(in)
		require.Error(t, err, in)
	}
}

// TestParseTimestamp shows that what wal dump and load print is read back, and the other forms.
func TestParseTimestamp(t *testing.T) {
	base := hybridtime.FromMicros(1357034400123456, 0)
	for _, c := range []struct {
		in   string
		want hybridtime.Timestamp
	}{
		{base.String(), base},
		{(base + 4095).String(), base + 4095},
		{"2013-01-01T10:00:00.123456Z", base},
		{"2013-01-01T11:00:00.123456+01:00", base},
		{"2013-01-01T10:00:00Z+1", hybridtime.FromMicros(1357034400000000, 1)},
		{"1357034400123456", base},
	} {
		got, err := parseTimestamp(c.in)
		require.NoError(t, err, c.in)
		require.Equal(t, c.want, got, c.in)
	}
	for _, in := range []string{
		"", "now", "0", "-1", "9223372036854775807", "2013-01-01", "2013-01-01T10:00:00", "2013-01-01T10:00:00Z+4096",
		"2013-01-01T10:00:00Z+", "2013-01-01T10:00:00.1234567Z", "1969-12-31T23:59:59Z", "2200-01-01T00:00:00Z", "2013-01-01T10:00:00Z 7",
	} {
		_, err := parseTimestamp(in)
		require.Error(t, err, in)
	}
}

// FuzzParseArguments shows that no argument makes a panic, and that names are written so that they read back.
func FuzzParseArguments(f *testing.F) {
	for _, s := range []string{"a,b", `"a,""b":4`, "2013-01-01T10:00:00Z+7", "id:4:7"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if names, err := parseNames(s); err == nil {
			again, err := parseNames(quoteNames(names))
			require.NoError(t, err)
			require.Equal(t, names, again)
		}
		if h, err := parseHash(s); err == nil {
			require.GreaterOrEqual(t, h.Buckets, 2)
		}
		if ts, err := parseTimestamp(s); err == nil {
			again, err := parseTimestamp(ts.String())
			require.NoError(t, err)
			require.Equal(t, ts, again)
		}
	})
}

// TestNearest shows which typing mistakes are seen through.
func TestNearest(t *testing.T) {
	words := []string{"create", "list", "describe", "delete", "load", "scan", "count"}
	for in, want := range map[string]string{
		"lst": "list", "craete": "create", "desc": "describe", "cuont": "count", "laod": "load", "xyzzy": "", "": "", "delte": "delete",
	} {
		require.Equal(t, want, nearest(in, words), in)
	}
}

// TestFlagValues shows durations and choices.
func TestFlagValues(t *testing.T) {
	var d durationFlag
	for in, want := range map[string]string{"30": "30s", "0.5": "500ms", "2m": "2m0s", "1ms": "1ms"} {
		require.NoError(t, d.Set(in))
		require.Equal(t, want, d.String())
	}
	for _, in := range []string{"", "0", "-1s", "soon", "1e300", "NaN"} {
		require.Error(t, d.Set(in), in)
	}
	c := choice{value: "insert", words: []string{"insert", "upsert"}}
	require.NoError(t, c.Set("UPSERT"))
	require.Equal(t, "upsert", c.String())
	require.ErrorContains(t, c.Set("upsrt"), "did you mean upsert?")
	require.ErrorContains(t, c.Set("zzz"), "it takes insert, upsert")
}
