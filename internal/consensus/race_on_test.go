//go:build race

package consensus_test

// raceDetector: a simulated cluster runs on one goroutine, so under the detector a few seeds do.
const raceDetector = true
