package clock

import (
	"errors"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

// TestRestart shows that a clock begun at a mark gives out nothing at or below what the first one gave.
func TestRestart(t *testing.T) {
	c, err := New(DefaultConfig(), SystemSource(), Marks{})
	if err != nil {
		t.Fatal(err)
	}
	ts, err := c.Now()
	if err != nil {
		t.Fatal(err)
	}
	m, write := c.MarkFor(ts)
	if !write {
		t.Fatal("no mark asked for")
	}
	c.MarkDurable(m)
	if _, write := c.MarkFor(ts); write {
		t.Fatal("a mark asked for twice")
	}
	d, err := New(DefaultConfig(), SystemSource(), Marks{Clock: m})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.Now(); err != nil || again <= ts {
		t.Fatalf("after the restart: %v, %v; before it %v", again, err, ts)
	}
}

// TestGuard shows that a timestamp within the guard moves the clock and one beyond it doesn't.
func TestGuard(t *testing.T) {
	c, err := New(DefaultConfig(), SystemSource(), Marks{})
	if err != nil {
		t.Fatal(err)
	}
	ts := hybridtime.FromTime(time.Now().Add(5 * time.Second))
	if err := c.Update(ts); err != nil {
		t.Fatal(err)
	}
	if now, err := c.Now(); err != nil || now <= ts {
		t.Fatalf("%v, %v after %v", now, err, ts)
	}
	var ahead *AheadError
	if err := c.Update(ts.Add(time.Hour)); !errors.As(err, &ahead) {
		t.Fatal(err)
	}
	if c.Latest() > ts.Add(time.Second) {
		t.Fatal("the clock moved")
	}
}
