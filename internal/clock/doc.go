// Package clock gives out hybrid timestamps that can be trusted: they rise strictly, across restarts too, and none comes
// from a wall clock that has jumped.
package clock
