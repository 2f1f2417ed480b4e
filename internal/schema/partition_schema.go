package schema

import (
	"bytes"
	"encoding/binary"
	"slices"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// HashDimension spreads rows over buckets by a hash of some key columns.
type HashDimension struct {
	Columns []ColumnID
	Buckets uint32
	Seed    uint32
}

// RangeWithHash is the range of keys in [Lower, Upper), encoded range keys of which the empty one means unbounded, and the
// hash dimensions that hold in it instead of the table's; nil: the table's own.
type RangeWithHash struct {
	Lower, Upper []byte
	Hash         []HashDimension
}

func (r *RangeWithHash) contains(rangeKey []byte) bool {
	return bytes.Compare(r.Lower, rangeKey) <= 0 && (len(r.Upper) == 0 || bytes.Compare(rangeKey, r.Upper) < 0)
}

// PartitionSchema says how a table's rows are spread over its tablets: docs/format/keys.md.
type PartitionSchema struct {
	Hash []HashDimension
	// Range holds the columns of the range key in their order; none: no range partitioning.
	Range []ColumnID
	// CustomRanges are the ranges with hash dimensions of their own. They don't overlap.
	CustomRanges []RangeWithHash
}

// Validate checks the partition schema against the table's columns. An error is a *status.Error with code InvalidSchema.
func (ps *PartitionSchema) Validate(s *Schema) error {
	if err := validateHash(s, ps.Hash); err != nil {
		return err
	}
	if err := validatePartitionColumns(s, "range partitioning", ps.Range); err != nil {
		return err
	}
	if i, j := firstDuplicate(ps.Range); i >= 0 {
		return status.New(status.InvalidSchema, "range partitioning: columns %d and %d are the same", i+1, j+1)
	}
	if len(ps.CustomRanges) > 0 && len(ps.Range) == 0 {
		return status.New(status.InvalidSchema, "%d ranges have hash dimensions of their own, but the table has no range columns",
			len(ps.CustomRanges))
	}
	for i := range ps.CustomRanges {
		if err := validateHash(s, ps.CustomRanges[i].Hash); err != nil {
			return err
		}
	}
	if err := ps.ValidateRanges(s, ps.CustomRanges); err != nil {
		return status.New(status.InvalidSchema, "%s", err.Error())
	}
	return nil
}

func validateHash(s *Schema, dims []HashDimension) error {
	used := make(map[ColumnID]bool)
	for i, d := range dims {
		if d.Buckets < 2 {
			return status.New(status.InvalidSchema, "hash dimension %d has %d buckets, want at least 2", i+1, d.Buckets)
		}
		if len(d.Columns) == 0 {
			return status.New(status.InvalidSchema, "hash dimension %d has no columns", i+1)
		}
		if err := validatePartitionColumns(s, "hash partitioning", d.Columns); err != nil {
			return err
		}
		for _, id := range d.Columns {
			if used[id] {
				return status.New(status.InvalidSchema, "column %q is hashed twice", s.columns[s.IndexOfID(id)].Name)
			}
			used[id] = true
		}
	}
	return nil
}

func validatePartitionColumns(s *Schema, what string, ids []ColumnID) error {
	for _, id := range ids {
		i := s.IndexOfID(id)
		if i < 0 {
			return status.New(status.InvalidSchema, "%s: the table has no column with id %d", what, id)
		}
		if i >= s.numKey {
			return s.columns[i].fault(status.InvalidSchema, "%s takes key columns alone", what)
		}
	}
	return nil
}

func firstDuplicate(ids []ColumnID) (int, int) {
	for j, id := range ids {
		if i := slices.Index(ids[:j], id); i >= 0 {
			return i, j
		}
	}
	return -1, -1
}

// PartitionKey appends a row's partition key to dst: a bucket for each hash dimension, then the range key. cell returns the
// value bytes of the column at a position, as in EncodeKey. It allocates nothing if dst has room for about twice the key.
func (ps *PartitionSchema) PartitionKey(s *Schema, cell func(i int) []byte, dst []byte) []byte {
	start := len(dst)
	for range ps.Hash {
		dst = append(dst, 0, 0, 0, 0)
	}
	rangeStart := len(dst)
	dst = appendComponents(s, ps.Range, cell, dst)
	end := len(dst)
	for i, d := range ps.hashFor(dst[rangeStart:]) {
		// The hash's input stands behind the key for a moment.
		dst = appendComponents(s, ascending(d.Columns), cell, dst)
		bucket := d.bucket(dst[end:])
		dst = dst[:end]
		binary.BigEndian.PutUint32(dst[start+4*i:], bucket)
	}
	return dst
}

// bucket is the one that a hash input, the encoding of the dimension's columns, falls into.
func (d *HashDimension) bucket(input []byte) uint32 {
	return uint32(Murmur2_64(input, uint64(d.Seed)) % uint64(d.Buckets))
}

// HashOf returns the hash dimensions that hold for the range that begins at a range key.
func (ps *PartitionSchema) HashOf(lower []byte) []HashDimension { return ps.hashFor(lower) }

// hashFor returns the hash dimensions that hold for a range key.
func (ps *PartitionSchema) hashFor(rangeKey []byte) []HashDimension {
	for i := range ps.CustomRanges {
		if r := &ps.CustomRanges[i]; r.contains(rangeKey) && r.Hash != nil {
			return r.Hash
		}
	}
	return ps.Hash
}

// appendComponents appends the order-preserving encoding of some key columns.
func appendComponents(s *Schema, ids []ColumnID, cell func(i int) []byte, dst []byte) []byte {
	for k, id := range ids {
		i := s.IndexOfID(id)
		dst = appendKeyCell(dst, s.columns[i].Type, cell(i), k == len(ids)-1)
	}
	return dst
}

// ascending returns the ids in rising order, in which a hash takes its columns.
func ascending(ids []ColumnID) []ColumnID {
	if slices.IsSorted(ids) {
		return ids
	}
	return slices.Sorted(slices.Values(ids))
}

// PartitionSchemaFromProto turns a message into a partition schema, hash columns in rising order. Validate does the checks.
func PartitionSchemaFromProto(p *nyalav1.PartitionSchema) *PartitionSchema {
	ps := &PartitionSchema{Hash: hashFromProto(p.GetHashDimensions()), Range: columnIDs(p.GetRangeColumnIds())}
	for _, r := range p.GetCustomRanges() {
		ps.CustomRanges = append(ps.CustomRanges, RangeWithHash{
			Lower: r.GetLower(), Upper: r.GetUpper(), Hash: hashFromProto(r.GetHashDimensions()),
		})
	}
	return ps
}

func hashFromProto(dims []*nyalav1.HashDimension) []HashDimension {
	var out []HashDimension
	for _, d := range dims {
		out = append(out, HashDimension{
			Columns: ascending(columnIDs(d.GetColumnIds())), Buckets: d.GetNumBuckets(), Seed: d.GetSeed(),
		})
	}
	return out
}

func columnIDs(ids []uint32) []ColumnID {
	var out []ColumnID
	for _, id := range ids {
		out = append(out, ColumnID(id))
	}
	return out
}

// ToProto returns the partition schema as a message, hash columns in rising order.
func (ps *PartitionSchema) ToProto() *nyalav1.PartitionSchema {
	p := &nyalav1.PartitionSchema{HashDimensions: hashToProto(ps.Hash), RangeColumnIds: plainIDs(ps.Range)}
	for _, r := range ps.CustomRanges {
		p.CustomRanges = append(p.CustomRanges, &nyalav1.RangeWithHash{
			Lower: r.Lower, Upper: r.Upper, HashDimensions: hashToProto(r.Hash),
		})
	}
	return p
}

func hashToProto(dims []HashDimension) []*nyalav1.HashDimension {
	var out []*nyalav1.HashDimension
	for _, d := range dims {
		out = append(out, &nyalav1.HashDimension{
			ColumnIds: plainIDs(ascending(d.Columns)), NumBuckets: d.Buckets, Seed: d.Seed,
		})
	}
	return out
}

func plainIDs(ids []ColumnID) []uint32 {
	var out []uint32
	for _, id := range ids {
		out = append(out, uint32(id))
	}
	return out
}
