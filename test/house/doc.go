// Package house holds the rules of the house that no linter knows, as tests: which package may import which, and that
// every package says what it is for.
package house
