package master

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShortVersion shows what is left of a version on the page.
func TestShortVersion(t *testing.T) {
	require.Equal(t, "v1.2.3", shortVersion("v1.2.3 (commit 8988ed1, built 2026-11-30T21:14:05Z, go1.26.8, linux/amd64)"))
	require.Equal(t, "v1.2.3", shortVersion("v1.2.3"))
	require.Empty(t, shortVersion(""))
}
