// Package reference makes docs/flags.md and docs/metrics.md from the code, and its test says whether they are current.
//
// A master and a tablet server are started, alone and in folders of their own. What they say of themselves on /varz and
// /metrics/help goes, together with the prose of the templates beside this file, into the two documents:
//
//	go test ./test/reference -update     (make generate)
//	go test ./test/reference             (make verify, make test)
//
// The prose that belongs to one flag or metric stands in the code, where it is declared.
package reference
