package hybridtime

import (
	"testing"
	"time"
)

// TestLayout shows the layout by Kudu's own example and that both parts come back.
func TestLayout(t *testing.T) {
	if got := FromMicros(1_700_000_000_000_000, 0); uint64(got) != 0x60a24181e4000000 {
		t.Fatalf("1,700,000,000 s = %#x, want 0x60a24181e4000000", uint64(got))
	}
	ts := FromMicros(1_357_016_400_000_001, 4095)
	if ts.Micros() != 1_357_016_400_000_001 || ts.Logical() != 4095 {
		t.Fatalf("parts of %d: %d, %d", ts, ts.Micros(), ts.Logical())
	}
	if FromMicros(-1, 0) != 0 {
		t.Fatal("a time before the epoch isn't zero")
	}
	if got := FromTime(ts.Time()); got.Micros() != ts.Micros() {
		t.Fatalf("through time.Time: %d, want %d", got.Micros(), ts.Micros())
	}
}

// TestString shows the three forms: none, without and with a logical part.
func TestString(t *testing.T) {
	for _, c := range []struct {
		ts   Timestamp
		want string
	}{
		{0, "-"},
		{FromMicros(1_357_016_400_000_001, 0), "2013-01-01T05:00:00.000001Z"},
		{FromMicros(1_357_016_400_000_000, 7), "2013-01-01T05:00:00.000000Z+7"},
	} {
		if got := c.ts.String(); got != c.want {
			t.Errorf("%d: %q, want %q", uint64(c.ts), got, c.want)
		}
	}
}

// TestAdd shows that Add keeps the logical part, undoes itself, and saturates instead of wrapping.
func TestAdd(t *testing.T) {
	ts := FromMicros(1_000_000, 3)
	if got := ts.Add(time.Second); got != FromMicros(2_000_000, 3) {
		t.Errorf("one second later: %d", got)
	}
	if got := ts.Add(time.Second).Sub(ts); got != time.Second {
		t.Errorf("difference: %v", got)
	}
	if got := ts.Add(-2 * time.Second); got != 0 {
		t.Errorf("before the epoch: %d", got)
	}
	if got := (Max - 1).Add(time.Hour); got != Max {
		t.Errorf("past the end: %d", got)
	}
}
