//go:build planted

package consensus

// plants are the mistakes planted in a Core.
type plants struct{ mistakes mistake }

func (p plants) planted(m mistake) bool { return p.mistakes&m != 0 }
