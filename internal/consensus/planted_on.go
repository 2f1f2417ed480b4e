//go:build planted

package consensus

func (c *Core) planted(m mistake) bool { return c.mistakes&m != 0 }
