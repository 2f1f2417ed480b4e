//go:build !linux

package rpc

import "net"

// listen leaves the backlog to the system: net.Listen takes none.
func listen(address string, _ int) (net.Listener, error) { return net.Listen("tcp", address) }
