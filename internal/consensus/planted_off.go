//go:build !planted

package consensus

// plants is empty without the tag: nothing can be planted.
type plants struct{}

func (plants) planted(mistake) bool { return false }
