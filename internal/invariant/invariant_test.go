package invariant

import "testing"

// TestCheck shows that a broken invariant stops the program with its message, and a kept one doesn't.
func TestCheck(t *testing.T) {
	Check(true, "unused")
	defer func() {
		if got := recover(); got != "invariant broken: applied 5 > committed 4" {
			t.Fatalf("recovered %v", got)
		}
	}()
	Check(false, "applied %d > committed %d", 5, 4)
}
