package schema

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sort"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/invariant"
	"github.com/nyaladb/nyala/internal/status"
)

// Partition is a tablet's share of its table: the rows whose partition keys are in [Start, End). An empty End is unbounded.
type Partition struct {
	Buckets    []uint32
	Start, End []byte
}

// Partitions returns a new table's partitions in order: each range (the custom ones, or a single unbounded one if there are
// none) times each combination of buckets. Ask NumPartitions first: the list can be long.
func (ps *PartitionSchema) Partitions() []Partition {
	parts, err := ps.PartitionsOf(ps.CustomRanges)
	invariant.Check(err == nil, "partitions of a partition schema that isn't valid: %v", err)
	return parts
}

// PartitionsOf is Partitions for the given ranges; with none, for a single unbounded one. Ranges that are empty, overlap, or
// have another number of hash dimensions than the table are an InvalidArgument.
func (ps *PartitionSchema) PartitionsOf(ranges []RangeWithHash) ([]Partition, error) {
	if len(ranges) == 0 {
		ranges = []RangeWithHash{{}}
	}
	if err := ps.validateRanges(ranges, hexRange); err != nil {
		return nil, err
	}
	var parts []Partition
	for i := range ranges {
		r := &ranges[i]
		dims := ps.dimensionsOf(r)
		buckets := make([]uint32, len(dims))
		for more := true; more; more = nextBuckets(buckets, dims) {
			parts = append(parts, newPartition(slices.Clone(buckets), r.Lower, r.Upper))
		}
	}
	slices.SortFunc(parts, Partition.Compare)
	return parts, nil
}

func (ps *PartitionSchema) dimensionsOf(r *RangeWithHash) []HashDimension {
	if r.Hash != nil {
		return r.Hash
	}
	return ps.Hash
}

// nextBuckets counts up, the last dimension fastest, and says whether there was a next combination.
func nextBuckets(buckets []uint32, dims []HashDimension) bool {
	for i := len(buckets) - 1; i >= 0; i-- {
		if buckets[i]++; buckets[i] < dims[i].Buckets {
			return true
		}
		buckets[i] = 0
	}
	return false
}

// NumPartitions is the length of Partitions, at most the largest uint64.
func (ps *PartitionSchema) NumPartitions() uint64 {
	ranges := ps.CustomRanges
	if len(ranges) == 0 {
		ranges = []RangeWithHash{{}}
	}
	var sum uint64
	for i := range ranges {
		product := uint64(1)
		for _, d := range ps.dimensionsOf(&ranges[i]) {
			hi, lo := bits.Mul64(product, uint64(d.Buckets))
			if hi != 0 {
				return ^uint64(0)
			}
			product = lo
		}
		var carry uint64
		if sum, carry = bits.Add64(sum, product, 0); carry != 0 {
			return ^uint64(0)
		}
	}
	return sum
}

// ValidateRanges checks that ranges are not empty, don't overlap and have as many hash dimensions as the table, whose schema is
// for the message.
func (ps *PartitionSchema) ValidateRanges(s *Schema, ranges []RangeWithHash) error {
	return ps.validateRanges(ranges, func(r *RangeWithHash) string { return ps.FormatRange(s, r.Lower, r.Upper) })
}

func hexRange(r *RangeWithHash) string { return fmt.Sprintf("[%x, %x)", r.Lower, r.Upper) }

func (ps *PartitionSchema) validateRanges(ranges []RangeWithHash, text func(*RangeWithHash) string) error {
	sorted := make([]*RangeWithHash, len(ranges))
	for i := range ranges {
		r := &ranges[i]
		sorted[i] = r
		if len(r.Upper) > 0 && bytes.Compare(r.Lower, r.Upper) >= 0 {
			return status.New(status.InvalidArgument, "the range %s is empty", text(r))
		}
		if r.Hash != nil && len(r.Hash) != len(ps.Hash) {
			return status.New(status.InvalidArgument, "the range %s has %d hash dimensions, the table %d: they must be equal",
				text(r), len(r.Hash), len(ps.Hash))
		}
	}
	slices.SortFunc(sorted, func(a, b *RangeWithHash) int { return bytes.Compare(a.Lower, b.Lower) })
	for i := 1; i < len(sorted); i++ {
		if a, b := sorted[i-1], sorted[i]; len(a.Upper) == 0 || bytes.Compare(b.Lower, a.Upper) < 0 {
			return status.New(status.InvalidArgument, "the ranges %s and %s overlap", text(a), text(b))
		}
	}
	return nil
}

// newPartition builds the bounds. Where there are buckets and the range has no upper bound, the end is the next bucket of the
// last dimension, without a range part.
func newPartition(buckets []uint32, lower, upper []byte) Partition {
	p := Partition{Buckets: buckets, Start: append(appendBuckets(nil, buckets), lower...)}
	switch {
	case len(upper) > 0:
		p.End = append(appendBuckets(nil, buckets), upper...)
	case len(buckets) > 0:
		p.End = appendBuckets(nil, buckets)
		last := p.End[len(p.End)-4:]
		binary.BigEndian.PutUint32(last, binary.BigEndian.Uint32(last)+1)
	}
	return p
}

func appendBuckets(dst []byte, buckets []uint32) []byte {
	for _, b := range buckets {
		dst = binary.BigEndian.AppendUint32(dst, b)
	}
	return dst
}

// Contains says whether a row with the partition key belongs to the partition.
func (p *Partition) Contains(partitionKey []byte) bool {
	return bytes.Compare(p.Start, partitionKey) <= 0 && (len(p.End) == 0 || bytes.Compare(partitionKey, p.End) < 0)
}

// RangeStart and RangeEnd are the range parts of the bounds; an empty RangeEnd is unbounded.
func (p *Partition) RangeStart() []byte { return rangePart(p.Start, len(p.Buckets)) }

// RangeEnd is the range part of the end.
func (p *Partition) RangeEnd() []byte { return rangePart(p.End, len(p.Buckets)) }

func rangePart(bound []byte, dims int) []byte { return bound[min(4*dims, len(bound)):] }

// Compare orders a table's partitions, by hash part, then by range part, bytewise. Two partitions of one table with the same
// start are the same.
func (p Partition) Compare(o Partition) int {
	// The hash part has one length throughout a table, so the whole compares as its parts do.
	return cmp.Or(bytes.Compare(p.Start, o.Start), len(p.Buckets)-len(o.Buckets))
}

// String is for messages and pages: HASH 2,0 RANGE [80000000, 80000064).
func (p Partition) String() string {
	s := ""
	for i, b := range p.Buckets {
		s += fmt.Sprintf("%s%d", [...]string{"HASH ", ","}[min(i, 1)], b)
	}
	if start, end := p.RangeStart(), p.RangeEnd(); len(start) > 0 || len(end) > 0 {
		if s != "" {
			s += " "
		}
		s += fmt.Sprintf("RANGE [%x, %x)", start, end)
	}
	return s
}

// FindPartition returns the position of the partition that holds the key among partitions in order, -1 if none does.
func FindPartition(parts []Partition, partitionKey []byte) int {
	i := sort.Search(len(parts), func(i int) bool { return bytes.Compare(parts[i].Start, partitionKey) > 0 }) - 1
	if i < 0 || !parts[i].Contains(partitionKey) {
		return -1
	}
	return i
}

// PartitionFromProto turns a message into a partition, which shares its bytes.
func PartitionFromProto(p *nyalav1.Partition) Partition {
	return Partition{Buckets: p.GetHashBuckets(), Start: p.GetPartitionKeyStart(), End: p.GetPartitionKeyEnd()}
}

// ToProto returns the partition as a message, which shares its bytes.
func (p Partition) ToProto() *nyalav1.Partition {
	return &nyalav1.Partition{HashBuckets: p.Buckets, PartitionKeyStart: p.Start, PartitionKeyEnd: p.End}
}
