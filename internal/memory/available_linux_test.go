package memory

import (
	"math"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// TestGroupLimit shows whose limit counts, in both versions of control groups, in nested groups, and in a container.
func TestGroupLimit(t *testing.T) {
	files := func(kv ...string) fstest.MapFS {
		m := fstest.MapFS{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = &fstest.MapFile{Data: []byte(kv[i+1] + "\n")}
		}
		return m
	}
	for name, c := range map[string]struct {
		files fstest.MapFS
		text  string
		want  int64
	}{
		"none":                   {files(), "0::/\n", math.MaxInt64},
		"not limited":            {files("a/memory.max", "max"), "0::/a\n", math.MaxInt64},
		"own":                    {files("a/b/memory.max", "1000", "a/memory.max", "max"), "0::/a/b\n", 1000},
		"the one around":         {files("a/b/memory.max", "1000", "a/memory.max", "900"), "0::/a/b\n", 900},
		"container":              {files("memory.max", "800"), "0::/docker/0123\n", 800},
		"version 1":              {files("memory/x/memory.limit_in_bytes", "700", "memory/memory.limit_in_bytes", "9223372036854771712"), "4:memory:/x\n1:cpu:/y\n0::/\n", 700},
		"version 1, not limited": {files("memory/memory.limit_in_bytes", "9223372036854771712"), "4:cpu,memory:/\n", 9223372036854771712},
	} {
		got, err := groupLimit(c.files, c.text)
		require.NoError(t, err, name)
		require.Equal(t, c.want, got, name)
	}
	_, err := groupLimit(files("a/memory.max", "lots"), "0::/a\n")
	require.ErrorContains(t, err, "a/memory.max")
}

// FuzzGroupLimit shows that no text makes it fail in another way than by an error.
func FuzzGroupLimit(f *testing.F) {
	f.Add("0::/a\n", "100")
	f.Add("4:memory:/../..\n", "max")
	f.Fuzz(func(_ *testing.T, text, value string) {
		_, _ = groupLimit(fstest.MapFS{"memory.max": &fstest.MapFile{Data: []byte(value)}, "a/memory.max": &fstest.MapFile{Data: []byte(value)}}, text)
	})
}
