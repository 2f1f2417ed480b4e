package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nyaladb/nyala/client"
)

// TestTableFile reads descriptions as people write them and as describe prints them.
func TestTableFile(t *testing.T) {
	o, err := parseTableFile([]byte(`
# A table of measurements.
name: metrics
columns:
  - {name: host, type: string}
  - {name: at, type: unixtime_micros}
  - {name: "a, b", type: "decimal(9, 2)", nullable: true, default: 1.50, comment: in EUR}
  - {name: day, type: date, default: 2013-01-01}
  - {name: on, type: bool, default: true}
  - {name: "no", type: varchar(3), default: "no"}
primary_key: [host, at]
hash:
  - {columns: [host], buckets: 4, seed: 7}
range: [at]
ranges:
  - range: "[, '2013-01-01T00:00:00Z'), ['2013-01-01T00:00:00Z', '2014-01-01T00:00:00Z')"
  - range: "['2014-01-01T00:00:00Z', ) "
    hash: [{columns: [at], buckets: 2}]
replicas: 1
`))
	require.NoError(t, err)
	require.Equal(t, []string{"host", "at"}, o.PrimaryKey)
	require.Equal(t, []client.HashPartition{{Columns: []string{"host"}, Buckets: 4, Seed: 7}}, o.Hash)
	require.Equal(t, []string{"at"}, o.RangeColumns)
	require.Len(t, o.Ranges, 3)
	require.Empty(t, o.Ranges[1].Hash)
	require.Equal(t, []client.HashPartition{{Columns: []string{"at"}, Buckets: 2}}, o.Ranges[2].Hash)
	require.Equal(t, 1, o.Replicas)
	var specs []string
	for _, c := range o.Columns {
		specs = append(specs, c.String())
	}
	require.Equal(t, []string{
		"host string", "at unixtime_micros", `"a, b" decimal(9,2) null default 1.50 comment 'in EUR'`, "day date default '2013-01-01'",
		"on bool default true", "no varchar(3) default 'no'",
	}, specs)

	// JSON, with half a surrogate pair as some programs write them.
	o, err = parseTableFile([]byte(`{"name": "\ud83d\ude00", "columns": [{"name": "k", "type": "int8", "key": true}], "range": []}`))
	require.NoError(t, err)
	require.Equal(t, "\U0001F600", o.Name)
	require.NotNil(t, o.RangeColumns)
	require.False(t, o.NoRanges)
	require.True(t, o.Columns[0].Key)

	// An empty list of ranges isn't one that is left out, where there are columns for them.
	for text, want := range map[string]bool{"": false, "ranges: []": true, "range: [k]\nranges: []": true, "range: []\nranges: []": false} {
		o, err = parseTableFile([]byte("name: t\ncolumns: [{name: k, type: int8, key: true}]\nprimary_key: [k]\n" + text))
		require.NoError(t, err)
		require.Equal(t, want, o.NoRanges, text)
	}
}

func TestTableFileFaults(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "empty",
		"name: t":                               "no columns",
		"nam: t":                                "nam not found",
		`{"nam": "t"}`:                          `unknown field "nam"`,
		"name: [":                               "yaml",
		"{":                                     "EOF",
		"columns: [{name: k, type: int9}]":      `column "k": type "int9"`,
		"columns: [{name: k}]":                  `column "k": type ""`,
		"columns: [{name: k, type: int8 null}]": "more than a type",
		"columns: [{name: k, type: 'int8, c int8'}]":                                     "more than a type",
		"columns: [{name: k, type: int8, default: 128}]":                                 "default",
		"columns: [{name: k, type: int8}]\nrange: [x]":                                   `no column "x"`,
		"columns: [{name: k, type: int8}]\nprimary_key: [k]\nranges: [{range: '[1, 2'}]": "want",
		"columns: [{name: k, type: int8}]\n---\nname: t":                                 "more stands behind",
		"columns: [{name: k, type: int8}]\nhash: [{columns: [k], buckets: -1}]":          "line 2",
		`{"columns": [{"name": "k", "type": "int8"}]} {}`:                                "more stands behind",
		"a: &a [x,x]\nb: &b [*a,*a]\n" + strings.Repeat("x", maxTableFileBytes):          "longer than",
	} {
		_, err := parseTableFile([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseTableFile(f *testing.F) {
	f.Add([]byte("name: t\ncolumns: [{name: k, type: int8, default: 1}]\nprimary_key: [k]\nranges: [{range: '[1, 2)'}]"))
	f.Add([]byte(`{"name": "t", "columns": [{"name": "k", "type": "decimal(3,1)"}], "hash": [{"columns": ["k"], "buckets": 2}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := parseTableFile(text)
		if err == nil && len(o.Columns) == 0 {
			t.Fatal("a table without columns")
		}
	})
}
