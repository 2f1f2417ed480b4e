package schema

import "fmt"

// OpType is what a row operation does. The numbers are Kudu's; they stand in the log.
type OpType uint8

// The operations that a write may hold.
const (
	Insert OpType = 1
	Update OpType = 2
	Delete OpType = 3
	Upsert OpType = 5
)

// The same, but that a row that is there already, or isn't, is no error: the operation then changes nothing. Of UpsertIgnore
// that holds for columns that can't be changed, which no table has: it does what Upsert does.
const (
	InsertIgnore OpType = 10
	UpdateIgnore OpType = 11
	DeleteIgnore OpType = 12
	UpsertIgnore OpType = 13
)

// Bounds of range partitions, which use the layout of row operations but are no writes: see RangeBoundsDecoder.
const (
	SplitRow                 OpType = 4
	RangeLowerBound          OpType = 6
	RangeUpperBound          OpType = 7
	ExclusiveRangeLowerBound OpType = 8
	InclusiveRangeUpperBound OpType = 9
)

var opTypeNames = [...]string{
	Insert: "INSERT", Update: "UPDATE", Delete: "DELETE", Upsert: "UPSERT",
	InsertIgnore: "INSERT_IGNORE", UpdateIgnore: "UPDATE_IGNORE", DeleteIgnore: "DELETE_IGNORE", UpsertIgnore: "UPSERT_IGNORE",
	SplitRow: "SPLIT_ROW", RangeLowerBound: "RANGE_LOWER_BOUND", RangeUpperBound: "RANGE_UPPER_BOUND",
	ExclusiveRangeLowerBound: "EXCLUSIVE_RANGE_LOWER_BOUND", InclusiveRangeUpperBound: "INCLUSIVE_RANGE_UPPER_BOUND",
}

// String is Kudu's name: INSERT.
func (t OpType) String() string {
	if int(t) < len(opTypeNames) && opTypeNames[t] != "" {
		return opTypeNames[t]
	}
	return fmt.Sprintf("OP_TYPE_%d", uint8(t))
}

// Plain is the type without IGNORE, and whether it had that.
func (t OpType) Plain() (plain OpType, ignore bool) {
	switch t {
	case InsertIgnore:
		return Insert, true
	case UpdateIgnore:
		return Update, true
	case DeleteIgnore:
		return Delete, true
	case UpsertIgnore:
		return Upsert, true
	default:
		return t, false
	}
}

// write says whether a write may hold operations of the type.
func (t OpType) write() bool {
	switch plain, _ := t.Plain(); plain {
	case Insert, Update, Delete, Upsert:
		return true
	default:
		return false
	}
}

// bound says whether the type is a range partition's bound or a split.
func (t OpType) bound() bool {
	switch t {
	case SplitRow, RangeLowerBound, RangeUpperBound, ExclusiveRangeLowerBound, InclusiveRangeUpperBound:
		return true
	default:
		return false
	}
}
