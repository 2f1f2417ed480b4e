package cli

import (
	"context"
	"encoding/hex"
	"fmt"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// dumpFile reads the file of a server that doesn't run.
func (a *app) dumpFile(ctx context.Context, path string, f walFlags, out *walPrinter) error {
	return wal.Dump(ctx, path, ident.TabletID(f.tablet), func(d wal.DumpEntry) error {
		return out.print(walEntry(d, f.showValues))
	})
}

// walEntry is an entry in the form in which a server sends it.
func walEntry(d wal.DumpEntry, showValues bool) *nyalav1.WALEntry {
	e := &nyalav1.WALEntry{
		TabletId: string(d.TabletID), OpId: &nyalav1.OpId{Term: uint64(d.OpID.Term), Index: uint64(d.OpID.Index)}, Kind: d.Kind.String(),
		Timestamp: uint64(d.Timestamp), Bytes: uint64(d.Bytes), CrcOk: d.CRCOK,
	}
	switch {
	case d.Err != nil:
		e.Value = d.Err.Error() // said even without --show_values: it is why the CRC column isn't the whole story
	case showValues:
		e.Value = walValue(d.Kind, d.Payload)
	}
	return e
}

// walValue says what an entry's payload holds. A write's rows can't be taken apart without the table's schema, which the log
// doesn't hold: their bytes are shown.
func walValue(kind wal.Kind, payload []byte) string {
	switch kind {
	case wal.KindWrite:
		var w nyalav1.WriteOp
		if err := proto.Unmarshal(payload, &w); err != nil {
			return fmt.Sprintf("not a write: %v", err)
		}
		s := fmt.Sprintf("schema_version=%d", w.GetSchemaVersion())
		if id := w.GetRequestId(); id != nil {
			s += fmt.Sprintf(" client=%x seq_no=%d first_incomplete=%d", id.GetClientId(), id.GetSeqNo(), id.GetFirstIncompleteSeqNo())
		}
		return s + fmt.Sprintf(" rows=%x indirect=%q", w.GetRowOperations().GetRows(), w.GetRowOperations().GetIndirectData())
	case wal.KindNone, wal.KindNoop, wal.KindConfig, wal.KindAlter:
	}
	return hex.EncodeToString(payload)
}
