// Package e2e runs whole clusters of real processes on loopback, started by internal/localcluster as `nyala local` starts
// them, and drives them as a user would: through the public client and the command line.
//
// The binaries are those in the folder that NYALA_BIN names (make test sets it), else the tests build them. A cluster's folder
// is kept where a test fails, and named.
package e2e
