package localcluster

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlagsOfItsOwn: a flag that would have the cluster look for a server where it isn't is refused before anything is started.
func TestFlagsOfItsOwn(t *testing.T) {
	c := Config{Dir: "d", MasterFlags: []string{"--rpc_bind_addresses=127.0.0.1:1", "--max_clock_sync_error_usec=1"}, TserverFlags: []string{"-fs-wal-dir=/x"}}
	err := c.Validate()
	require.ErrorContains(t, err, "the flag --rpc_bind_addresses=127.0.0.1:1: the cluster gives each server its addresses and folders itself")
	require.ErrorContains(t, err, "the flag -fs-wal-dir=/x: ")
	require.NotContains(t, err.Error(), "max_clock_sync_error_usec")
}
