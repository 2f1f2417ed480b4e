package tserver

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// scanners are the scans that clients haven't finished. One that isn't called for the time to live is dropped; there is a
// bound on how many there may be.
type scanners struct {
	ttl time.Duration
	max int

	mu   sync.Mutex
	byID map[scannerID]*scanner
}

type scannerID [16]byte

type scanner struct {
	id       scannerID
	tabletID string
	table    string
	caller   string // its client's address
	open     *nyalav1.NewScan
	snapshot hybridtime.Timestamp
	opened   time.Time
	lastUsed time.Time // guarded by scanners.mu

	// calls, rows and bytes count what was answered.
	calls, rows, bytes atomic.Uint64

	// mu is held over a step.
	mu       sync.Mutex
	scan     *tablet.Scanner
	nextCall uint32
	closed   bool
}

func newScanners(ttl time.Duration, most int) *scanners {
	return &scanners{ttl: ttl, max: most, byID: map[scannerID]*scanner{}}
}

// add keeps a scan for its next call.
func (s *scanners) add(sc *scanner, now time.Time) error {
	rand.Read(sc.id[:])
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.byID) >= s.max {
		return &status.Error{
			Code: status.TooBusy, Msg: "too many open scanners: finish or close some (--scanner_max_open)", RetryAfter: time.Second,
		}
	}
	sc.opened, sc.lastUsed = now, now
	s.byID[sc.id] = sc
	return nil
}

// list describes the open scanners, the one open longest first.
func (s *scanners) list(now time.Time) []*nyalav1.ScannerInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := make([]*nyalav1.ScannerInfo, 0, len(s.byID))
	for _, sc := range s.byID {
		infos = append(infos, &nyalav1.ScannerInfo{
			ScannerId: sc.id[:], TabletId: sc.tabletID, TableName: sc.table, Caller: sc.caller, ReadMode: sc.open.GetReadMode(),
			SnapshotTimestamp: uint64(sc.snapshot), Columns: sc.open.GetColumns(), CountOnly: sc.open.GetCountOnly(),
			Predicates: sc.open.GetPredicates(), OpenMs: now.Sub(sc.opened).Milliseconds(), IdleMs: now.Sub(sc.lastUsed).Milliseconds(),
			Calls: sc.calls.Load(), Rows: sc.rows.Load(), Bytes: sc.bytes.Load(),
		})
	}
	slices.SortFunc(infos, func(a, b *nyalav1.ScannerInfo) int {
		return cmp.Or(-cmp.Compare(a.GetOpenMs(), b.GetOpenMs()), bytes.Compare(a.GetScannerId(), b.GetScannerId()))
	})
	return infos
}

// get finds an open scanner and counts as a use of it.
func (s *scanners) get(id []byte, now time.Time) (*scanner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(id) == len(scannerID{}) {
		if sc, ok := s.byID[scannerID(id)]; ok {
			sc.lastUsed = now
			return sc, nil
		}
	}
	return nil, status.New(status.ScannerExpired, "scanner %x not found (it may have expired)", id)
}

// drop forgets a scanner and closes it once no step of it is under way.
func (s *scanners) drop(sc *scanner) {
	s.mu.Lock()
	delete(s.byID, sc.id)
	s.mu.Unlock()
	sc.close()
}

// close ends the scan once no step of it is under way.
func (sc *scanner) close() {
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if !sc.closed {
		sc.closed = true
		sc.scan.Close()
	}
}

// expire drops the scanners that weren't used for the time to live and returns how many.
func (s *scanners) expire(now time.Time) int {
	return s.dropIf(func(sc *scanner) bool { return now.Sub(sc.lastUsed) > s.ttl })
}

// closeAll drops every scanner.
func (s *scanners) closeAll() { s.dropIf(func(*scanner) bool { return true }) }

func (s *scanners) dropIf(which func(*scanner) bool) int {
	var out []*scanner
	s.mu.Lock()
	for id, sc := range s.byID {
		if which(sc) {
			out = append(out, sc)
			delete(s.byID, id)
		}
	}
	s.mu.Unlock()
	for _, sc := range out {
		sc.close()
	}
	return len(out)
}

func (s *scanners) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byID)
}

// turn checks that a call is the one that is due and takes it. The caller holds sc.mu.
func (sc *scanner) turn(req *nyalav1.ScanRequest) error {
	if sc.closed {
		return status.New(status.ScannerExpired, "scanner %x not found (it may have expired)", sc.id[:])
	}
	if req.GetCallSeqId() != sc.nextCall {
		return status.New(status.InvalidScanCallSeqID, "scanner %x: call %d came where %d was due", sc.id[:], req.GetCallSeqId(), sc.nextCall)
	}
	sc.nextCall++
	return nil
}
