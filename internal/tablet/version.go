package tablet

import (
	"encoding/binary"
	"errors"

	"github.com/nyaladb/nyala/internal/schema"
)

// versionKind says what a row version does to the versions before it.
type versionKind uint8

const (
	// wholeRow holds every column that isn't in the key: nothing before it shows through.
	wholeRow versionKind = 1
	// someColumns holds the cells that changed; the others come from the versions before it.
	someColumns versionKind = 2
	// deletedRow says that from here on there is no row.
	deletedRow versionKind = 3
)

// A row version's value, docs/format/store.md "Row versions":
//
//	1 byte   format << 4 | kind
//	cells    by rising column id:
//	         uvarint (id - previous id - 1) << 4 | length code    (previous id of the first cell: -1)
//	         [uvarint length, with lengthFollows]
//	         the value bytes
const (
	versionFormat = 1

	lengthDirect  = 12 // codes up to it are the length itself
	length16      = 13
	lengthFollows = 14
	lengthNull    = 15
)

var (
	errVersionEmpty  = errors.New("row version: no bytes")
	errVersionFormat = errors.New("row version: unknown format or kind")
	errVersionCell   = errors.New("row version: a cell runs past the end or has an impossible id or length")
)

// appendVersionHeader begins a version.
func appendVersionHeader(dst []byte, kind versionKind) []byte {
	return append(dst, versionFormat<<4|byte(kind))
}

// parseVersion returns a version's kind and its cells.
func parseVersion(v []byte) (versionKind, []byte, error) {
	if len(v) == 0 {
		return 0, nil, errVersionEmpty
	}
	kind := versionKind(v[0] & 0x0f)
	if v[0]>>4 != versionFormat || kind < wholeRow || kind > deletedRow || kind == deletedRow && len(v) > 1 {
		return 0, nil, errVersionFormat
	}
	return kind, v[1:], nil
}

// cellWriter appends cells in rising order of their ids.
type cellWriter struct {
	buf  []byte
	next schema.ColumnID // one past the id written last
}

// add appends a cell. Value bytes are copied.
func (w *cellWriter) add(id schema.ColumnID, cell []byte, null bool) {
	head := uint64(id-w.next) << 4
	w.next = id + 1
	n := len(cell)
	switch {
	case null:
		w.buf = appendUvarint(w.buf, head|lengthNull)
		return
	case n <= lengthDirect:
		w.buf = appendUvarint(w.buf, head|uint64(n))
	case n == 16:
		w.buf = appendUvarint(w.buf, head|length16)
	default:
		w.buf = appendUvarint(w.buf, head|lengthFollows)
		w.buf = appendUvarint(w.buf, uint64(n))
	}
	w.buf = append(w.buf, cell...)
}

func appendUvarint(dst []byte, v uint64) []byte {
	if v < 0x80 {
		return append(dst, byte(v))
	}
	return binary.AppendUvarint(dst, v)
}

// cellReader goes over a version's cells.
type cellReader struct {
	buf  []byte
	next uint64 // one past the id read last

	id   schema.ColumnID
	cell []byte // the version's memory
	null bool
}

// more reads the next cell into the reader's fields and says whether there was one. The error is of a version that no
// writer made.
func (r *cellReader) more() (bool, error) {
	if len(r.buf) == 0 {
		return false, nil
	}
	head := uint64(r.buf[0])
	i := 1
	if head >= 0x80 {
		if head, i = binary.Uvarint(r.buf); i <= 0 {
			return false, errVersionCell
		}
	}
	id := r.next + head>>4
	if id > 1<<32-1 {
		return false, errVersionCell
	}
	r.next = id + 1
	r.id = schema.ColumnID(id)
	n := head & 0x0f
	r.null = false
	switch n {
	case lengthNull:
		r.null, n = true, 0
	case length16:
		n = 16
	case lengthFollows:
		l, k := binary.Uvarint(r.buf[i:])
		if k <= 0 {
			return false, errVersionCell
		}
		n, i = l, i+k
	}
	if n > uint64(len(r.buf)-i) {
		return false, errVersionCell
	}
	end := i + int(n)
	r.cell = r.buf[i:end:end]
	r.buf = r.buf[end:]
	return true, nil
}

// mergeCells appends to dst the cells of base overlaid with those of over: where both have a column, over's.
func mergeCells(dst, base, over []byte) ([]byte, error) {
	w := cellWriter{buf: dst}
	b, o := cellReader{buf: base}, cellReader{buf: over}
	bm, err := b.more()
	if err != nil {
		return dst, err
	}
	om, err := o.more()
	for err == nil && (bm || om) {
		if om && (!bm || o.id <= b.id) {
			w.add(o.id, o.cell, o.null)
			same := bm && o.id == b.id
			if om, err = o.more(); err == nil && same {
				bm, err = b.more()
			}
			continue
		}
		w.add(b.id, b.cell, b.null)
		bm, err = b.more()
	}
	return w.buf, err
}
