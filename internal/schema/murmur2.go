package schema

import "encoding/binary"

// Murmur2_64 is MurmurHash2's 64-bit "A" variant, the hash of hash partitions. It allocates nothing.
func Murmur2_64(data []byte, seed uint64) uint64 {
	const (
		m = 0xc6a4a7935bd1e995
		r = 47
	)
	h := seed ^ uint64(len(data))*m
	for ; len(data) >= 8; data = data[8:] {
		k := binary.LittleEndian.Uint64(data) * m
		k ^= k >> r
		h = (h ^ k*m) * m
	}
	if len(data) > 0 {
		for i, b := range data {
			h ^= uint64(b) << (8 * i)
		}
		h *= m
	}
	h ^= h >> r
	h *= m
	return h ^ h>>r
}
