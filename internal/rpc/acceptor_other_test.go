//go:build !linux

package rpc

// queuesSeen says whether this system shows accept queues.
const queuesSeen = false
