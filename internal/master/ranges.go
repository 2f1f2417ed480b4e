package master

import (
	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// partitionSchema reads how a new table is to be split, and into which ranges: none only where the request says so.
func partitionSchema(s *schema.Schema, req *nyalav1.CreateTableRequest) (*schema.PartitionSchema, []schema.RangeWithHash, error) {
	ps := &schema.PartitionSchema{}
	var err error
	if ps.Hash, err = hashByNames(s, req.GetHash()); err != nil {
		return nil, nil, err
	}
	if rc := req.GetRangeColumns(); rc == nil {
		for _, c := range s.Columns()[:s.NumKeyColumns()] {
			ps.Range = append(ps.Range, c.ID)
		}
	} else if ps.Range, err = columnsByName(s, "range partitioning", rc.GetNames()); err != nil {
		return nil, nil, err
	}
	if err := ps.Validate(s); err != nil {
		return nil, nil, err
	}
	if req.GetNoRanges() {
		return ps, nil, noRanges(ps, req)
	}
	ranges := make([]schema.RangeWithHash, 0, max(1, len(req.GetRanges())))
	for _, p := range req.GetRanges() {
		r, err := rangeFromProto(s, ps, p)
		if err != nil {
			return nil, nil, err
		}
		ranges = append(ranges, r)
	}
	if len(ranges) == 0 {
		ranges = append(ranges, schema.RangeWithHash{})
	}
	if err := ps.ValidateRanges(s, ranges); err != nil {
		return nil, nil, err
	}
	if ranges, err = splitRanges(s, ps, ranges, req.GetSplits()); err != nil {
		return nil, nil, err
	}
	ps = ps.WithRanges(ranges)
	return ps, ranges, ps.Validate(s)
}

// noRanges checks a request for a table without ranges, which gets them later.
func noRanges(ps *schema.PartitionSchema, req *nyalav1.CreateTableRequest) error {
	switch {
	case len(ps.Range) == 0:
		return status.New(status.InvalidArgument, "a table without ranges needs range columns: without them it could never get any")
	case len(req.GetRanges()) > 0:
		return status.New(status.InvalidArgument, "the table is to have no ranges, and %d are given", len(req.GetRanges()))
	case len(req.GetSplits()) > 0:
		return status.New(status.InvalidArgument, "the table is to have no ranges, and %d splits of them are given", len(req.GetSplits()))
	}
	return nil
}

func splitRanges(s *schema.Schema, ps *schema.PartitionSchema, ranges []schema.RangeWithHash, splits []*nyalav1.RangeSplit) ([]schema.RangeWithHash, error) {
	var keys [][]byte
	for _, split := range splits {
		key, err := ps.SplitOf(s, rangeValues(split.GetValues()))
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return schema.SplitRanges(ranges, keys)
}

// rangeFromProto encodes a range's bounds and finds its hash columns.
func rangeFromProto(s *schema.Schema, ps *schema.PartitionSchema, p *nyalav1.RangePartition) (schema.RangeWithHash, error) {
	r, err := ps.RangeOf(s, schema.RangeSpec{
		Lower: rangeValues(p.GetLower()), LowerExclusive: p.GetLowerExclusive(),
		Upper: rangeValues(p.GetUpper()), UpperInclusive: p.GetUpperInclusive(),
	})
	if err == nil && len(p.GetHash()) > 0 {
		r.Hash, err = hashByNames(s, p.GetHash())
	}
	return r, err
}

func rangeValues(values []*nyalav1.RangeValue) [][]byte {
	var out [][]byte
	for _, v := range values {
		out = append(out, v.Value) // nil where it is absent: unset
	}
	return out
}

func hashByNames(s *schema.Schema, dims []*nyalav1.CreateTableRequest_HashByName) ([]schema.HashDimension, error) {
	var out []schema.HashDimension
	for _, h := range dims {
		columns, err := columnsByName(s, "hash partitioning", h.GetColumns())
		if err != nil {
			return nil, err
		}
		out = append(out, schema.HashDimension{Columns: columns, Buckets: h.GetNumBuckets(), Seed: h.GetSeed()})
	}
	return out, nil
}

func columnsByName(s *schema.Schema, what string, names []string) ([]schema.ColumnID, error) {
	var out []schema.ColumnID
	for _, name := range names {
		i := s.IndexOf(name)
		if i < 0 {
			return nil, status.New(status.InvalidArgument, "%s names column %q, which the table doesn't have", what, name)
		}
		out = append(out, s.Column(i).ID)
	}
	return out, nil
}
