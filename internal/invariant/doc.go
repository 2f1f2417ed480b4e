// Package invariant checks what must hold. Check is always on and for what costs next to nothing; Enabled is a constant
// that the build tag "invariants" turns on, for checks that cost something: if invariant.Enabled { … }.
//
// A failed check is a bug in the program, never bad input: it panics.
package invariant
