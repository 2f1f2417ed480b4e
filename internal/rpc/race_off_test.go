//go:build !race

package rpc

// raceDetector says whether it is on: it makes memory and time mean nothing.
const raceDetector = false
