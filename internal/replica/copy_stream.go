package replica

import (
	"errors"
	"hash/crc32"
	"io"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// The stream of a tablet copy is docs/format/copy.md: a header, chunks of pairs, a trailer. What is in a chunk is the store's
// business; that nothing is lost, doubled, changed or out of place on the way is this file's.

// copyFormat is the stream's format.
const copyFormat = 1

var copySums = crc32.MakeTable(crc32.Castagnoli)

// copyTotals are what both ends count.
type copyTotals struct {
	pairs, bytes uint64
	sum          uint32
}

func (t *copyTotals) add(pairs []byte, n int) {
	t.pairs += uint64(n)
	t.bytes += uint64(len(pairs))
	t.sum = crc32.Update(t.sum, copySums, pairs)
}

// chunk is the message of the next pairs, which are n.
func (t *copyTotals) chunk(pairs []byte, n int) *nyalav1.FetchTabletResponse {
	c := &nyalav1.TabletCopyChunk{Pairs: pairs, Crc32C: crc32.Checksum(pairs, copySums), First: t.pairs}
	t.add(pairs, n)
	return &nyalav1.FetchTabletResponse{Part: &nyalav1.FetchTabletResponse_Chunk{Chunk: c}}
}

// trailer is the last message.
func (t *copyTotals) trailer() *nyalav1.FetchTabletResponse {
	return &nyalav1.FetchTabletResponse{Part: &nyalav1.FetchTabletResponse_Trailer{
		Trailer: &nyalav1.TabletCopyTrailer{Pairs: t.pairs, Bytes: t.bytes, Crc32C: t.sum},
	}}
}

func copyHeader(rec *nyalav1.ReplicaRecord, config *nyalav1.RaftConfig, at ident.OpID, ts uint64) *nyalav1.FetchTabletResponse {
	return &nyalav1.FetchTabletResponse{Part: &nyalav1.FetchTabletResponse_Header{Header: &nyalav1.TabletCopyHeader{
		Format: copyFormat, Record: rec, Config: config, Timestamp: ts,
		OpId: &nyalav1.OpId{Term: uint64(at.Term), Index: uint64(at.Index)},
	}}}
}

// copyReader reads a stream and checks it.
type copyReader struct {
	recv   func() (*nyalav1.FetchTabletResponse, error)
	totals copyTotals
}

func errCopyStream(format string, args ...any) error {
	return status.New(status.Corruption, "the stream of the copy: "+format, args...)
}

// header reads the first message. It holds a record, a config and an entry, and whether they fit is the caller's to say.
func (r *copyReader) header() (*nyalav1.TabletCopyHeader, error) {
	m, err := r.recv()
	if errors.Is(err, io.EOF) {
		return nil, errCopyStream("it ended before it began")
	}
	if err != nil {
		return nil, err
	}
	h := m.GetHeader()
	switch {
	case h == nil:
		return nil, errCopyStream("it doesn't begin with a header")
	case h.GetFormat() != copyFormat:
		return nil, status.New(status.NotSupported, "the stream of the copy has format %d, this program knows %d: use the same version on both servers",
			h.GetFormat(), copyFormat)
	case h.GetRecord() == nil || h.GetConfig() == nil || h.GetOpId().GetIndex() == 0 || h.GetOpId().GetTerm() == 0:
		return nil, errCopyStream("its header lacks the record, the config or the entry")
	}
	return h, nil
}

// next reads a chunk's pairs; none are left when there is no error and no pairs: then all came, and as they were sent. The
// caller says with took how many they were, before the next call.
func (r *copyReader) next() (pairs []byte, err error) {
	m, err := r.recv()
	if errors.Is(err, io.EOF) {
		return nil, errCopyStream("it ended without its trailer after %d pairs", r.totals.pairs)
	}
	if err != nil {
		return nil, err
	}
	switch part := m.GetPart().(type) {
	case *nyalav1.FetchTabletResponse_Chunk:
		c := part.Chunk
		switch sum := crc32.Checksum(c.GetPairs(), copySums); {
		case len(c.GetPairs()) == 0:
			return nil, errCopyStream("a chunk after %d pairs is empty", r.totals.pairs)
		case sum != c.GetCrc32C():
			return nil, errCopyStream("the chunk after %d pairs has the sum %08x, was sent with %08x", r.totals.pairs, sum, c.GetCrc32C())
		case c.GetFirst() != r.totals.pairs:
			return nil, errCopyStream("a chunk that stands behind %d pairs came after %d", c.GetFirst(), r.totals.pairs)
		}
		return c.GetPairs(), nil
	case *nyalav1.FetchTabletResponse_Trailer:
		t := part.Trailer
		if got := (copyTotals{t.GetPairs(), t.GetBytes(), t.GetCrc32C()}); got != r.totals {
			return nil, errCopyStream("%d pairs of %d bytes with the sum %08x came, %d of %d with %08x were sent",
				r.totals.pairs, r.totals.bytes, r.totals.sum, got.pairs, got.bytes, got.sum)
		}
		return nil, r.end()
	default:
		return nil, errCopyStream("a message after %d pairs is neither a chunk nor the trailer", r.totals.pairs)
	}
}

// took counts the pairs of the chunk that next gave last.
func (r *copyReader) took(pairs []byte, n int) { r.totals.add(pairs, n) }

// end sees to it that nothing stands behind the trailer.
func (r *copyReader) end() error {
	switch _, err := r.recv(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return err
	}
	return errCopyStream("something stands behind its trailer")
}
