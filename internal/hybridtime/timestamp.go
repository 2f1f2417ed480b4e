package hybridtime

import (
	"fmt"
	"time"
)

// LogicalBits is the width of the logical part.
const LogicalBits = 12

const logicalMask = 1<<LogicalBits - 1

// Timestamp is microseconds since the Unix epoch << LogicalBits | logical. Zero means "none".
type Timestamp uint64

// Max is the largest timestamp.
const Max = Timestamp(^uint64(0))

// FromMicros returns the timestamp at usec microseconds since the epoch with the given logical part, of which only the
// low twelve bits count. Times before the epoch become zero.
func FromMicros(usec int64, logical uint16) Timestamp {
	if usec < 0 {
		return 0
	}
	return Timestamp(uint64(usec)<<LogicalBits | uint64(logical)&logicalMask)
}

// FromTime returns the timestamp at t, to the microsecond, with logical part zero.
func FromTime(t time.Time) Timestamp { return FromMicros(t.UnixMicro(), 0) }

// Micros returns the physical part in microseconds since the epoch.
func (t Timestamp) Micros() int64 { return int64(t >> LogicalBits) }

// Logical returns the logical part.
func (t Timestamp) Logical() uint16 { return uint16(t & logicalMask) }

// Time returns the physical part as a UTC time.
func (t Timestamp) Time() time.Time { return time.UnixMicro(t.Micros()).UTC() }

// Add returns t moved by d, to the microsecond, its logical part kept. It saturates at zero and Max.
func (t Timestamp) Add(d time.Duration) Timestamp {
	const maxMicros = int64(Max >> LogicalBits)
	usec := t.Micros() + d.Microseconds()
	switch {
	case usec < 0:
		return 0
	case usec > maxMicros:
		return Max
	}
	return FromMicros(usec, t.Logical())
}

// Sub returns how far t's physical part lies after u's.
func (t Timestamp) Sub(u Timestamp) time.Duration {
	return time.Duration(t.Micros()-u.Micros()) * time.Microsecond
}

// String is RFC 3339 in UTC with microseconds, and the logical part where it isn't zero: 2013-01-01T00:00:00.000000Z+7.
func (t Timestamp) String() string {
	if t == 0 {
		return "-"
	}
	s := t.Time().Format("2006-01-02T15:04:05.000000Z")
	if l := t.Logical(); l != 0 {
		s = fmt.Sprintf("%s+%d", s, l)
	}
	return s
}
