package schema

import "math/bits"

// Bitmap is a set of column positions: bit i is byte i>>3, bit i&7.
type Bitmap []byte

func bitmapLen(n int) int { return (n + 7) / 8 }

// NewBitmap returns an empty bitmap for n positions.
func NewBitmap(n int) Bitmap { return make(Bitmap, bitmapLen(n)) }

// Get says whether position i is in the set.
func (b Bitmap) Get(i int) bool { return b[i>>3]>>(i&7)&1 != 0 }

// Set puts position i into the set.
func (b Bitmap) Set(i int) { b[i>>3] |= 1 << (i & 7) }

// Clear takes position i out of the set.
func (b Bitmap) Clear(i int) { b[i>>3] &^= 1 << (i & 7) }

// ClearAll empties the set.
func (b Bitmap) ClearAll() { clear(b) }

// firstMissing returns the first position of want that isn't in b, -1 if there is none.
func (b Bitmap) firstMissing(want Bitmap) int {
	for k, w := range want {
		if m := w &^ b[k]; m != 0 {
			return k<<3 + lowestBit(m)
		}
	}
	return -1
}

// firstCommon returns the first position in both, -1 if there is none.
func (b Bitmap) firstCommon(o Bitmap) int {
	for k, w := range o {
		if m := w & b[k]; m != 0 {
			return k<<3 + lowestBit(m)
		}
	}
	return -1
}

func lowestBit(m byte) int { return bits.TrailingZeros8(m) }
