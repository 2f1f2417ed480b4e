// Command report reads the output of go test -json on standard input and prints what a person wants of it: a line per
// package as it ends, the whole output of what failed, the tests that were skipped with their reasons, the slowest ten,
// and one line of counts. It exits with 1 where anything failed or nothing ran.
package main
