package rpc

import (
	"sync"
	"time"
)

// occasional bounds how often something is logged that others can cause as often as they like.
type occasional struct {
	every time.Duration

	mu      sync.Mutex
	last    time.Time
	skipped int
}

// now says whether to log it this time, and if so how many times it wasn't since the last time.
func (o *occasional) now() (skipped int, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := time.Now()
	if !o.last.IsZero() && t.Sub(o.last) < o.every {
		o.skipped++
		return 0, false
	}
	skipped, o.skipped, o.last = o.skipped, 0, t
	return skipped, true
}
