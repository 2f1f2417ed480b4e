package tablet

import (
	"bytes"
	"hash/maphash"
)

// overlay holds, for one tablet in one uncommitted batch, the keys that its operations touched: whether the row exists by
// now, and the version that the operation at hand gives it. It is an open-addressing table whose keys and values stand in
// one arena, so that a batch of any number of rows costs no allocation once the memory has grown.
type overlay struct {
	seed    maphash.Seed
	slots   []int32 // entry + 1, 0: free; a power of two, at most half full
	entries []overlayEntry
	arena   []byte
	op      uint32 // the number of the current operation, from 1 on
}

type overlayEntry struct {
	hash           uint64
	keyOff, keyLen int
	// valOff, valLen: the version that the current operation gives the key, where valLen > 0.
	valOff, valLen int
	// op is the operation that touched the key last; valLen and decided are of that one.
	op uint32
	// exists is valid once known.
	exists, known bool
	// decided: whether the row exists is known, asked for, or made so by a blind upsert before anyone asks.
	decided bool
	// wanted: the store must be asked whether the row exists.
	wanted bool
}

// newOverlay returns an empty overlay. All of a store's overlays share a seed, so that a key's hash is the same in each.
func newOverlay(seed maphash.Seed) *overlay {
	return &overlay{seed: seed, slots: make([]int32, 64)}
}

// Memory that a reset keeps, enough for what one call of the apply pool takes of a tablet (4 MiB of entries); larger batches give
// theirs back.
const (
	overlayKeepEntries = 1 << 17
	overlayKeepArena   = 8 << 20
)

// reset forgets all keys.
func (o *overlay) reset() {
	if len(o.entries) > overlayKeepEntries || cap(o.arena) > overlayKeepArena {
		o.slots, o.entries, o.arena, o.op = make([]int32, 64), nil, nil, 0
		return
	}
	o.clearSlots()
	o.entries, o.arena, o.op = o.entries[:0], o.arena[:0], 0
}

// clearSlots frees all slots: where few of many are taken, those alone. From an entry's first slot to its own all are taken, and
// what is freed goes to the end of such a run: so no walk stops short of a slot that is still taken.
func (o *overlay) clearSlots() {
	if 8*len(o.entries) > len(o.slots) {
		clear(o.slots)
		return
	}
	mask := uint64(len(o.slots) - 1)
	for n := range o.entries {
		for i := o.entries[n].hash & mask; o.slots[i] != 0; i = (i + 1) & mask {
			o.slots[i] = 0
		}
	}
}

// entry returns the number of key's entry, made if need be. The key must stand at the arena's end, from off on; where the
// entry was there already the arena is cut back to off.
func (o *overlay) entry(off int) int32 {
	key := o.arena[off:]
	h := maphash.Bytes(o.seed, key)
	mask := uint64(len(o.slots) - 1)
	i := h & mask
	for ; o.slots[i] != 0; i = (i + 1) & mask {
		e := &o.entries[o.slots[i]-1]
		if e.hash == h && bytes.Equal(o.key(e), key) {
			o.arena = o.arena[:off]
			return o.slots[i] - 1
		}
	}
	o.entries = append(o.entries, overlayEntry{hash: h, keyOff: off, keyLen: len(key)})
	n := int32(len(o.entries))
	o.slots[i] = n
	if 2*len(o.entries) > len(o.slots) {
		o.grow()
	}
	return n - 1
}

func (o *overlay) grow() {
	o.slots = make([]int32, 2*len(o.slots))
	mask := uint64(len(o.slots) - 1)
	for n := range o.entries {
		i := o.entries[n].hash & mask
		for o.slots[i] != 0 {
			i = (i + 1) & mask
		}
		o.slots[i] = int32(n) + 1
	}
}

func (o *overlay) key(e *overlayEntry) []byte {
	return o.arena[e.keyOff : e.keyOff+e.keyLen : e.keyOff+e.keyLen]
}

func (o *overlay) value(e *overlayEntry) []byte {
	return o.arena[e.valOff : e.valOff+e.valLen : e.valOff+e.valLen]
}

// overlayCells lays the cells of an operation over the version that the key has in the current operation so far, if any.
func (o *overlay) overlayCells(e *overlayEntry, r *rowOp) error {
	if e.valLen == 0 {
		e.valOff, e.valLen = r.valOff, r.valLen
		return nil
	}
	kind, base, err := parseVersion(o.value(e))
	if err != nil {
		return err
	}
	return o.setMerged(e, kind, base, o.arena[r.valOff+1:r.valOff+r.valLen])
}

// setMerged gives the entry a version of the kind with base's cells overlaid by over's.
func (o *overlay) setMerged(e *overlayEntry, kind versionKind, base, over []byte) error {
	off := len(o.arena)
	// base and over may be the arena's own memory: that moves if it grows, and stays valid.
	arena, err := mergeCells(appendVersionHeader(o.arena, kind), base, over)
	if err != nil {
		return err
	}
	o.arena = arena
	e.valOff, e.valLen = off, len(arena)-off
	return nil
}
