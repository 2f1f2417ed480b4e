// Package cli is the nyala command: everything a person or a script does with a cluster from a shell.
//
// Main runs one command line. The commands are cobra's; each lives in a file of its own, gathers what it needs through
// package client (or, for what is asked of one server alone, through the server's own services), and hands it to a function
// that only prints. `nyala local` is package localcluster; `nyala demo` is the program behind make demo.
//
// # Invariants
//
//   - I1: standard output carries data alone. Progress, timing, hints and errors go to standard error.
//   - I2: every failure is one line (more only where several things failed) that says what, where and what to do, and an
//     exit code of exit.go.
//   - I3: what scan prints as CSV or JSON, load reads back as the same rows: NULL and the empty string stay apart.
//   - I4: a load keeps the order of rows with the same key, however many sessions it writes with.
//   - I5: what a command holds in memory is bounded, whatever the table's or the file's size.
//
// # Tests
//
// The printing functions and the whole of Main are tested with golden files (testdata, -update rewrites them) against a
// stand-in for a cluster that speaks the real protocol; the readers of CSV, NDJSON, tables' descriptions and the arguments have fuzz targets.
// The commands against real servers are in test/e2e.
package cli
