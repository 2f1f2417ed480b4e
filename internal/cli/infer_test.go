package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/client"
)

// TestInferColumns tells columns from text.
func TestInferColumns(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"csv": {
			"i,f,b,d,t,s,zip,mixed,none\n" +
				"1,1,true,2013-01-01,2013-01-01T10:00:00Z,x,01234,1,\n" +
				"-7,2.5,false,2013-01-02,2013-01-01T10:00:00.5Z,\"\",12345,x,\n" +
				"one field too few\n" +
				"NA,NA,NA,NA,NA,NA,NA,NA,NA\n",
			"i int64, f double, b bool, d date, t unixtime_micros, s string, zip string, mixed string, none string",
		},
		"csv of one line":   {"a,b\n", "a string, b string"},
		"ndjson":            {`{"a": 1, "b": "2013-01-01"}` + "\n" + `{"b": null, "c": true, "a": 2.5, "d": "17"}`, "a double, b date, c bool, d string"},
		"json":              {`[{"a": 1}, {"a": "x"}]`, "a string"},
		"a small 0 and 0.5": {"x,y\n0,0.5\n10,-0.25\n", "x int64, y double"},
	} {
		in, err := openInput("-", strings.NewReader(c.text))
		require.NoError(t, err)
		columns, err := in.inferColumns(loadFlags{nulls: []string{"", "NA"}})
		require.NoError(t, err, name)
		var got []string
		for _, col := range columns {
			require.True(t, col.Nullable)
			got = append(got, col.Name+" "+col.TypeName())
		}
		require.Equal(t, c.want, strings.Join(got, ", "), name)
	}
	for _, text := range []string{"", "{\"a\": [1]}", "[1, 2]", "{\"a\" 1}"} {
		in, err := openInput("-", strings.NewReader(text))
		require.NoError(t, err)
		_, err = in.inferColumns(loadFlags{nulls: []string{""}})
		require.Error(t, err, text)
	}
}

// TestInferFromParquet goes by the file's types, which hold every value of it.
func TestInferFromParquet(t *testing.T) {
	s, rec := everyRecord(t)
	var buf bytes.Buffer
	w, err := newRecordWriter(&buf, formatParquet, rec.Schema())
	require.NoError(t, err)
	require.NoError(t, w.write(rec))
	require.NoError(t, w.end())
	path := filepath.Join(t.TempDir(), "rows.parquet")
	require.NoError(t, os.WriteFile(path, buf.Bytes(), 0o600))
	in, err := openInput(path, nil)
	require.NoError(t, err)
	defer in.close()
	columns, err := in.inferColumns(loadFlags{})
	require.NoError(t, err)
	require.Len(t, columns, s.NumColumns())
	for i, c := range columns {
		want := s.Column(i).TypeName()
		if s.Column(i).Type == client.Varchar {
			want = "string"
		}
		require.Equal(t, want, c.TypeName(), c.Name)
	}
}

// TestLoadCreate makes a table like its input and loads it.
func TestLoadCreate(t *testing.T) {
	c := newFakeCluster(t, 3)
	const csv = "id,name\n1,a\n2,b\n"
	run := func(args ...string) (string, string, int) {
		return runCLI(t.Context(), c.master.addr, strings.NewReader(csv), append([]string{"table", "load", "t", "-"}, args...)...)
	}
	_, errs, code := run("--create")
	require.Equal(t, exitUsage, code, errs)
	require.Contains(t, errs, "name    string  null")
	require.Contains(t, errs, "--primary_key is missing")
	_, errs, code = run("--primary_key", "id")
	require.Equal(t, exitUsage, code, errs)
	_, errs, code = run("--create", "--primary_key", "id", "--hash", "id:2")
	require.Zero(t, code, errs)
	require.Equal(t, 2, c.count("t"))
	_, errs, code = run("--create", "--primary_key", "id")
	require.NotZero(t, code, errs)
	require.Contains(t, errs, "there already")
}
