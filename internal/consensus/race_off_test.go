//go:build !race

package consensus_test

const raceDetector = false
