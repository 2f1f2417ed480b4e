package consensus

import (
	"fmt"
	"sort"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
)

// stamp is a stamped entry's place and timestamp.
type stamp struct {
	index ident.Index
	ts    hybridtime.Timestamp
}

// stamps knows the timestamps in the part of a log that may still change, and the last one before it: what is needed to
// check I3 and to find the index that goes with a closed timestamp. base is at or below the committed index, so no
// entry at or below it is ever superseded; tail holds the stamped entries above it, rising in index and timestamp.
type stamps struct {
	base stamp
	tail []stamp
}

// last is the highest timestamp in the log.
func (s *stamps) last() hybridtime.Timestamp {
	if n := len(s.tail); n > 0 {
		return s.tail[n-1].ts
	}
	return s.base.ts
}

// truncate forgets the entries at and above from, which an append supersedes.
func (s *stamps) truncate(from ident.Index) {
	n := sort.Search(len(s.tail), func(i int) bool { return s.tail[i].index >= from })
	s.tail = s.tail[:n]
}

// add takes a stamped entry at the end of the log; it fails if the timestamp isn't above the last one.
func (s *stamps) add(index ident.Index, ts hybridtime.Timestamp) error {
	if last := s.last(); ts <= last {
		return fmt.Errorf("timestamp %s at index %d is not above %s before it", ts, index, last)
	}
	s.tail = append(s.tail, stamp{index, ts})
	return nil
}

// committed moves base up to the last stamped entry at or below the committed index.
func (s *stamps) committed(index ident.Index) {
	n := sort.Search(len(s.tail), func(i int) bool { return s.tail[i].index > index })
	if n == 0 {
		return
	}
	s.base = s.tail[n-1]
	if n == len(s.tail) {
		s.tail = s.tail[:0]
		return
	}
	s.tail = append(s.tail[:0], s.tail[n:]...)
}

// through returns an index such that every entry of the log at or below ts is at or below it: that of the last such entry
// where it is still known, else base's, which lies above.
func (s *stamps) through(ts hybridtime.Timestamp) ident.Index {
	n := sort.Search(len(s.tail), func(i int) bool { return s.tail[i].ts > ts })
	if n == 0 {
		return s.base.index
	}
	return s.tail[n-1].index
}
