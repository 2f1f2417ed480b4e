//go:build invariants

package invariant

// Enabled says whether the costly checks run.
const Enabled = true
