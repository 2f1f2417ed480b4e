package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"go.etcd.io/raft/v3/raftpb"

	"github.com/nyaladb/nyala/internal/ident"
)

// bucketID names a bucket; it is the bucket's name on disk and part of each record's CRC.
type bucketID byte

const (
	bucketEntries bucketID = 'e' // sequence number, group -> entry, piece of an entry, or cut
	bucketGroups  bucketID = 'g' // group -> tablet and replica record
	bucketStates  bucketID = 's' // group -> term, vote, commit index, start of the log
	bucketMeta    bucketID = 'm' // name -> value
	bucketTally   bucketID = 't' // the format's version, and the tally of all records
)

var allBuckets = []bucketID{bucketEntries, bucketGroups, bucketStates, bucketMeta, bucketTally}

var (
	formatKey = []byte("format")
	tallyKey  = []byte("tally")
)

// formatMagic stands in the format record.
const formatMagic = "nyala wal"

// Every value begins with a version byte and a CRC-32C, little-endian, over the bucket's name, the key and the value
// without the CRC.
const (
	recordVersion = 1
	recordHead    = 5
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// bucketCRC is the CRC of each bucket's name, with which those of its records begin.
var bucketCRC = func() (t [256]uint32) {
	for i := range t {
		t[i] = crc32.Update(0, castagnoli, []byte{byte(i)})
	}
	return t
}()

func recordCRC(bucket bucketID, key, value []byte) uint32 {
	crc := crc32.Update(bucketCRC[bucket], castagnoli, value[:1])
	crc = crc32.Update(crc, castagnoli, key)
	return crc32.Update(crc, castagnoli, value[recordHead:])
}

// newRecord begins a value; its CRC is set by seal.
func newRecord(dst []byte) []byte { return append(dst, recordVersion, 0, 0, 0, 0) }

// seal sets the CRC of a whole value and returns it.
func seal(bucket bucketID, key, value []byte) uint32 {
	crc := recordCRC(bucket, key, value)
	binary.LittleEndian.PutUint32(value[1:], crc)
	return crc
}

// storedCRC is the CRC that stands in a value, right or wrong.
func storedCRC(value []byte) uint32 {
	if len(value) < recordHead {
		return 0
	}
	return binary.LittleEndian.Uint32(value[1:])
}

var (
	errShort    = errors.New("record is too short")
	errCRC      = errors.New("CRC doesn't match")
	errTrailing = errors.New("record has trailing bytes")
)

// unseal checks a value and returns what follows its head.
func unseal(bucket bucketID, key, value []byte) ([]byte, error) {
	if len(value) < recordHead {
		return nil, errShort
	}
	if recordCRC(bucket, key, value) != storedCRC(value) {
		return nil, errCRC
	}
	if value[0] != recordVersion {
		return nil, fmt.Errorf("record version %d: %w", value[0], ErrVersion)
	}
	return value[recordHead:], nil
}

// fields reads varints one after the other; the first fault sticks.
type fields struct {
	b   []byte
	err error
}

func (f *fields) uvarint() uint64 {
	if f.err != nil {
		return 0
	}
	v, n := binary.Uvarint(f.b)
	if n <= 0 {
		f.err = errShort
		return 0
	}
	f.b = f.b[n:]
	return v
}

func (f *fields) byte() byte {
	if f.err != nil || len(f.b) == 0 {
		f.err = errShort
		return 0
	}
	v := f.b[0]
	f.b = f.b[1:]
	return v
}

func (f *fields) end() error {
	if f.err == nil && len(f.b) > 0 {
		return errTrailing
	}
	return f.err
}

// The kinds of records in the entries bucket.
const (
	recordEntry = 0x10 // | raft's entry type: an entry, or its first piece
	recordPiece = 0x20 // the next piece of an entry
	recordCut   = 0x30 // nothing at or after index counts any more
)

// pieceBytes is how much of an entry's data one record takes. A larger entry goes on in the records with the following
// sequence numbers. bbolt rewrites whole leaves, and a leaf holds two records or more whatever their size: without pieces
// one entry of 10 MB would be written again by each of the next commits, and its pages could only be reused where as many
// lie side by side. Two records of this size fill four pages of 4 KiB.
const pieceBytes = 8064

// maxEntryBytes bounds an entry's data, so that a damaged length can't ask for absurd memory.
const maxEntryBytes = 1 << 30

// pieces is the number of records that an entry with size bytes of data takes.
func pieces(size uint32) uint64 {
	if size <= pieceBytes {
		return 1
	}
	return (uint64(size) + pieceBytes - 1) / pieceBytes
}

// entryKey is the sequence number, big-endian, and the group's number as a varint. The number stands in the value as well:
// where a record is damaged, each place names a suspect.
func entryKey(dst []byte, seq uint64, n ident.LocalNumber) []byte {
	dst = binary.BigEndian.AppendUint64(dst, seq)
	return binary.AppendUvarint(dst, uint64(n))
}

func decodeEntryKey(key []byte) (seq uint64, n ident.LocalNumber, err error) {
	if len(key) < 9 {
		return 0, 0, errShort
	}
	f := fields{b: key[8:]}
	n = ident.LocalNumber(f.uvarint())
	return binary.BigEndian.Uint64(key), n, f.end()
}

// entryRecord is a decoded record of the entries bucket.
type entryRecord struct {
	kind   byte // recordEntry, recordPiece, recordCut
	typ    raftpb.EntryType
	number ident.LocalNumber
	term   uint64
	index  uint64
	size   uint64 // recordEntry: bytes of data in all pieces
	piece  uint64 // recordPiece: 1 for the second, …
	data   []byte // shares the value's memory
}

func appendEntryRecord(dst []byte, r *entryRecord) []byte {
	dst = newRecord(dst)
	dst = append(dst, r.kind|byte(r.typ))
	dst = binary.AppendUvarint(dst, uint64(r.number))
	dst = binary.AppendUvarint(dst, r.term)
	dst = binary.AppendUvarint(dst, r.index)
	switch r.kind {
	case recordEntry:
		dst = binary.AppendUvarint(dst, r.size)
	case recordPiece:
		dst = binary.AppendUvarint(dst, r.piece)
	}
	return append(dst, r.data...)
}

func decodeEntryRecord(key, value []byte) (entryRecord, error) {
	body, err := unseal(bucketEntries, key, value)
	if err != nil {
		return entryRecord{}, err
	}
	r, err := parseEntryBody(body)
	if err != nil {
		return entryRecord{}, err
	}
	_, n, err := decodeEntryKey(key)
	if err != nil {
		return entryRecord{}, err
	}
	if n != r.number {
		return entryRecord{}, fmt.Errorf("the key names replica %d, the value %d", n, r.number)
	}
	return r, nil
}

func parseEntryBody(body []byte) (entryRecord, error) {
	f := fields{b: body}
	kind := f.byte()
	r := entryRecord{kind: kind & 0xf0, typ: raftpb.EntryType(kind & 0x0f)}
	r.number = ident.LocalNumber(f.uvarint())
	r.term = f.uvarint()
	r.index = f.uvarint()
	switch r.kind {
	case recordEntry:
		r.size = f.uvarint()
		if f.err == nil && r.size > maxEntryBytes {
			return r, fmt.Errorf("an entry of %d bytes", r.size)
		}
		if f.err == nil && uint64(len(f.b)) != min(r.size, pieceBytes) {
			return r, fmt.Errorf("%d bytes in the first piece of an entry of %d", len(f.b), r.size)
		}
	case recordPiece:
		r.piece = f.uvarint()
		if f.err == nil && len(f.b) > pieceBytes {
			return r, fmt.Errorf("a piece of %d bytes", len(f.b))
		}
	case recordCut:
		if err := f.end(); err != nil {
			return r, err
		}
	default:
		return r, fmt.Errorf("unknown kind of record %#x", kind)
	}
	if r.kind != recordEntry && r.typ != 0 {
		return r, fmt.Errorf("unknown kind of record %#x", kind)
	}
	r.data = f.b
	return r, f.err
}

// numberKey is the key of a group's record and state.
func numberKey(n ident.LocalNumber) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 8), uint64(n))
}

func decodeNumberKey(key []byte) (ident.LocalNumber, error) {
	if len(key) != 8 {
		return 0, errShort
	}
	return ident.LocalNumber(binary.BigEndian.Uint64(key)), nil
}

func encodeGroup(n ident.LocalNumber, tablet ident.TabletID, record []byte) []byte {
	v := newRecord(make([]byte, 0, recordHead+24+len(tablet)+len(record)))
	v = binary.AppendUvarint(v, uint64(n))
	v = binary.AppendUvarint(v, uint64(len(tablet)))
	v = append(v, tablet...)
	v = append(v, record...)
	seal(bucketGroups, numberKey(n), v)
	return v
}

func decodeGroup(key, value []byte) (tablet ident.TabletID, record []byte, err error) {
	body, err := unseal(bucketGroups, key, value)
	if err != nil {
		return "", nil, err
	}
	f := fields{b: body}
	if n := f.uvarint(); f.err == nil && len(key) == 8 && n != binary.BigEndian.Uint64(key) {
		return "", nil, fmt.Errorf("the key names replica %d, the value %d", binary.BigEndian.Uint64(key), n)
	}
	size := f.uvarint()
	if f.err != nil {
		return "", nil, f.err
	}
	if size > uint64(len(f.b)) {
		return "", nil, errShort
	}
	return ident.TabletID(f.b[:size]), append([]byte(nil), f.b[size:]...), nil
}

// hardState is raft's term, vote and commit index.
type hardState struct{ term, vote, commit uint64 }

// groupState is what stands in the states bucket.
type groupState struct {
	hard  hardState
	start ident.OpID // the log begins after it
}

func encodeState(n ident.LocalNumber, s groupState) []byte {
	v := newRecord(make([]byte, 0, 64))
	for _, x := range [...]uint64{
		uint64(n), s.hard.term, s.hard.vote, s.hard.commit, uint64(s.start.Term), uint64(s.start.Index),
	} {
		v = binary.AppendUvarint(v, x)
	}
	seal(bucketStates, numberKey(n), v)
	return v
}

func decodeState(key, value []byte) (groupState, error) {
	body, err := unseal(bucketStates, key, value)
	if err != nil {
		return groupState{}, err
	}
	f := fields{b: body}
	n := f.uvarint()
	s := groupState{hard: hardState{term: f.uvarint(), vote: f.uvarint(), commit: f.uvarint()}}
	s.start.Term = ident.Term(f.uvarint())
	s.start.Index = ident.Index(f.uvarint())
	if err := f.end(); err != nil {
		return groupState{}, err
	}
	if len(key) == 8 && n != binary.BigEndian.Uint64(key) {
		return groupState{}, fmt.Errorf("the key names replica %d, the value %d", binary.BigEndian.Uint64(key), n)
	}
	return s, nil
}

func encodeMeta(key MetaKey, value []byte) []byte {
	v := newRecord(make([]byte, 0, recordHead+len(value)))
	v = append(v, value...)
	seal(bucketMeta, []byte(key), v)
	return v
}

func decodeMeta(key, value []byte) ([]byte, error) {
	body, err := unseal(bucketMeta, key, value)
	return append([]byte(nil), body...), err
}

// tally is written by each commit. Pages of bbolt have no checksum: the tally is what shows a record that vanished, or
// a page whose newest version never reached the disk.
type tally struct {
	commit  uint64            // number of the commit that wrote it: bbolt's transaction id
	nextSeq uint64            // no record has this sequence number or a higher one
	last    ident.LocalNumber // the highest number that a group ever had
	records uint64            // records in the buckets e, g, s and m
	sum     uint32            // of their CRCs, modulo 2^32
}

func (t *tally) add(crc uint32)    { t.records++; t.sum += crc }
func (t *tally) remove(crc uint32) { t.records--; t.sum -= crc }

func (t *tally) encode() []byte {
	v := newRecord(make([]byte, 0, 48))
	for _, x := range [...]uint64{t.commit, t.nextSeq, uint64(t.last), t.records, uint64(t.sum)} {
		v = binary.AppendUvarint(v, x)
	}
	seal(bucketTally, tallyKey, v)
	return v
}

func decodeTally(value []byte) (tally, error) {
	body, err := unseal(bucketTally, tallyKey, value)
	if err != nil {
		return tally{}, err
	}
	f := fields{b: body}
	t := tally{commit: f.uvarint(), nextSeq: f.uvarint(), last: ident.LocalNumber(f.uvarint()), records: f.uvarint()}
	sum := f.uvarint()
	t.sum = uint32(sum)
	if err := f.end(); err != nil {
		return tally{}, err
	}
	if sum > 1<<32-1 {
		return tally{}, fmt.Errorf("sum %d has more than 32 bits", sum)
	}
	return t, nil
}

func encodeFormat() []byte {
	v := append(newRecord(nil), formatMagic...)
	seal(bucketTally, formatKey, v)
	return v
}

func checkFormat(value []byte) error {
	body, err := unseal(bucketTally, formatKey, value)
	if err != nil {
		return err
	}
	if string(body) != formatMagic {
		return fmt.Errorf("the format record says %q, not %q", body, formatMagic)
	}
	return nil
}
