package rpc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// namespaceListenCounts returns how often an accept queue of this network namespace was full, and how many connections
// were dropped while being accepted.
func namespaceListenCounts() (overflows, drops uint64, err error) {
	text, err := os.ReadFile("/proc/self/net/netstat")
	if err != nil {
		return 0, 0, err
	}
	return parseListenCounts(text)
}

// parseListenCounts finds ListenOverflows and ListenDrops: a line of names and a line of numbers, both beginning with the
// same word.
func parseListenCounts(text []byte) (overflows, drops uint64, err error) {
	prefix := []byte("TcpExt:")
	var names [][]byte
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) == 0 || !bytes.Equal(fields[0], prefix) {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		found := 0
		for i, name := range names {
			if i >= len(fields) {
				break
			}
			var to *uint64
			switch string(name) {
			case "ListenOverflows":
				to = &overflows
			case "ListenDrops":
				to = &drops
			default:
				continue
			}
			if *to, err = strconv.ParseUint(string(fields[i]), 10, 64); err != nil {
				return 0, 0, fmt.Errorf("netstat: %s: %w", name, err)
			}
			found++
		}
		if found == 2 {
			return overflows, drops, nil
		}
		break
	}
	return 0, 0, errors.New("netstat: no ListenOverflows and ListenDrops")
}
