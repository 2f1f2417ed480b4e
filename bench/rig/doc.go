// Package rig is what the benchmarks under bench/ share: a cluster of real processes on ports of its own, what /proc and
// /metrics say of them, and a result printed as one JSON line.
//
// Each benchmark is a program of its own, bench/NAME, run by `make bench-NAME`. It starts what it measures, ends it again, and
// prints what it does on standard error; the last line of standard output is the result. docs/benchmarks.md says what each of
// them shows.
package rig
