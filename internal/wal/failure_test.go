package wal

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nyaladb/nyala/internal/ident"
)

// TestMemFailures makes a commit fail in each way there is and crashes: what is left is the state before or after that
// commit, as the way says, and nothing in between; a full disk changes and fails nothing.
func TestMemFailures(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := memRig(t)
		m := newModel()
		change := func() *Batch {
			var b Batch
			for range rapid.IntRange(1, 6).Draw(rt, "changes") {
				drawChange(rt, s, m, &b)
			}
			return &b
		}
		for range rapid.IntRange(0, 5).Draw(rt, "before") {
			if err := s.Commit(change()); err != nil {
				rt.Fatal(err)
			}
		}
		before := m.clone()
		b := change()
		f := rapid.SampledFrom(Failures).Draw(rt, "failure")
		s.Store.(*Mem).FailNext(f)
		err := s.Commit(b)
		if err == nil {
			rt.Fatalf("%v went unseen", f)
		}
		if derr := before.differs(visible(s)); derr != nil {
			rt.Fatalf("a commit that failed (%v) shows: %v", f, derr)
		}
		if f == FailNoSpace {
			requireAs(rt, err, ErrNoSpace)
			if s.Err() != nil {
				rt.Fatal("a full disk has failed the store")
			}
			if err := s.Commit(b); err != nil {
				rt.Fatal(err)
			}
		} else {
			requireAs(rt, err, ErrFailed)
			if err := s.Commit(b); err == nil {
				rt.Fatalf("the store goes on after: %v", f)
			}
			if f != FailSyncKept {
				m = before
			}
		}
		s.crash()
		if err := m.differs(s); err != nil {
			rt.Fatalf("after %v: %v", f, err)
		}
	})
}

func requireAs(rt *rapid.T, err, want error) {
	rt.Helper()
	require.ErrorIs(rt, err, want)
}

// visible is a store whose entries can be read although it has failed: what it shows is what matters here.
func visible(s *rig) Store {
	m := s.Store.(*Mem)
	c := newCore(m.path, m.log, m.metrics, 0)
	c.backend, c.logs, c.meta = m.backend, map[ident.LocalNumber]*Log{}, m.meta
	for n, l := range m.logs {
		c.logs[n] = &Log{
			core: c, number: n, tablet: l.tablet, record: l.record,
			slots: l.slots, start: l.start, bytes: l.bytes, hard: l.hard,
		}
	}
	return &Mem{core: c, medium: m.medium}
}

// TestMemFull shows that deletions go on while the disk is full.
func TestMemFull(t *testing.T) {
	s := NewMem()
	commit(t, s, func(x *Batch) {
		x.CreateGroup(1, tabletA, nil, ident.OpID{})
		x.Append(1, run(1, 1, 1, 50, 10))
	})
	commit(t, s, func(x *Batch) { x.Compact(1, ident.OpID{Term: 1, Index: 50}) })
	s.SetFull(true)
	var b Batch
	b.Append(1, run(1, 1, 51, 51, 10))
	require.ErrorIs(t, s.Commit(&b), ErrNoSpace)
	trimAll(t, s)
	require.ErrorIs(t, s.Commit(&b), ErrNoSpace)
	s.SetFull(false)
	require.NoError(t, s.Commit(&b))
	require.Equal(t, ident.Index(51), s.Crash().Log(1).LastOpID().Index)
}

// TestMemDamage flips, swaps and removes records one at a time: what is then not reported as damaged is exactly as it was.
func TestMemDamage(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := memRig(t)
		s := r.Store.(*Mem)
		m := newModel()
		for range rapid.IntRange(1, 8).Draw(rt, "commits") {
			var b Batch
			for range 4 {
				drawChange(rt, s, m, &b)
			}
			if err := s.Commit(&b); err != nil {
				rt.Fatal(err)
			}
		}
		total := 0
		s.Corrupt(func(_ string, _, v []byte) []byte { total++; return v })
		hit := rapid.IntRange(0, total-1).Draw(rt, "record")
		how := rapid.SampledFrom([]string{"flip", "remove", "shorten", "lengthen"}).Draw(rt, "how")
		at, what, owned := 0, "", true
		s.Corrupt(func(bucket string, k, v []byte) []byte {
			if at++; at != hit+1 {
				return v
			}
			if bucket == "e" {
				_, n, _ := decodeEntryKey(k)
				owned = m.groups[n] != nil
			}
			what = fmt.Sprintf("%s of record %x in %q", how, k, bucket)
			switch how {
			case "flip":
				i := rapid.IntRange(0, len(v)*8-1).Draw(rt, "bit")
				v[i/8] ^= 1 << (i % 8)
			case "remove":
				return nil
			case "shorten":
				return v[:rapid.IntRange(0, len(v)-1).Draw(rt, "length")]
			case "lengthen":
				return append(v, 0)
			}
			return v
		})
		after, err := s.Reopen()
		if err != nil {
			requireAs(rt, err, ErrDamaged)
			return
		}
		damaged := m.withoutDamaged(after)
		if damaged == 0 && owned {
			rt.Fatalf("%s went unseen", what)
		}
		if err := m.differsLeniently(after); err != nil {
			rt.Fatalf("%s: %v", what, err)
		}
		// The damage is seen again until the replicas are deleted; then nothing is left of it.
		again := after.Crash()
		for _, g := range after.Groups() {
			if g.Damaged != nil {
				require.Error(rt, again.Log(g.Number).group().Damaged, what)
				commit(t, again, func(x *Batch) { x.DeleteGroup(g.Number) })
			}
		}
		for more := true; more; {
			if more, err = again.Trim(5); err != nil {
				rt.Fatal(err)
			}
		}
		clean := again.Crash()
		if err := m.differs(clean); err != nil {
			rt.Fatalf("%s, after deleting the damaged: %v", what, err)
		}
	})
}

// withoutDamaged takes the groups that a store reports as damaged out of the model, and counts them.
func (m *model) withoutDamaged(s Store) int {
	n := 0
	for _, g := range s.Groups() {
		if g.Damaged != nil {
			delete(m.groups, g.Number)
			n++
		}
	}
	return n
}

// differsLeniently compares all but the damaged groups.
func (m *model) differsLeniently(s Store) error {
	for n, g := range m.groups {
		l := s.Log(n)
		if l == nil {
			return fmt.Errorf("group %d is missing", n)
		}
		if err := g.differs(l); err != nil {
			return fmt.Errorf("group %d: %w", n, err)
		}
	}
	for k, v := range m.meta {
		if got := string(s.Meta(k)); got != v {
			return fmt.Errorf("value %q is %q, want %q", k, got, v)
		}
	}
	return nil
}
