package wal

import (
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/schema"
)

// Proto is the entry in the form in which a server sends it to people. With showValues the rows of writes are spelled out.
func (d *DumpEntry) Proto(showValues bool) *nyalav1.WALEntry {
	e := &nyalav1.WALEntry{
		TabletId: string(d.TabletID), OpId: &nyalav1.OpId{Term: uint64(d.OpID.Term), Index: uint64(d.OpID.Index)}, Kind: d.Kind.String(),
		Timestamp: uint64(d.Timestamp), Bytes: uint64(d.Bytes), CrcOk: d.CRCOK,
	}
	switch {
	case d.Err != nil:
		e.Value = d.Err.Error() // said even without showValues: it is why the CRC isn't the whole story
	case showValues && d.Kind == KindWrite:
		e.Value = d.writeValue()
	case showValues:
		e.Value = hex.EncodeToString(d.Payload)
	}
	return e
}

// writeValue spells a write out: the request, then each row operation with its columns. Rows that were encoded with another
// schema than the group began with are shown as bytes.
func (d *DumpEntry) writeValue() string {
	var w nyalav1.WriteOp
	if err := proto.Unmarshal(d.Payload, &w); err != nil {
		return fmt.Sprintf("not a write: %v", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "schema_version=%d", w.GetSchemaVersion())
	if id := w.GetRequestId(); id != nil {
		fmt.Fprintf(&b, " client=%x seq_no=%d first_incomplete=%d", id.GetClientId(), id.GetSeqNo(), id.GetFirstIncompleteSeqNo())
	}
	ops := w.GetRowOperations()
	rows, err := d.rows(&w)
	if err != nil {
		fmt.Fprintf(&b, " rows=%x indirect=%q (%v)", ops.GetRows(), ops.GetIndirectData(), err)
		return b.String()
	}
	b.WriteString(rows)
	return b.String()
}

func (d *DumpEntry) rows(w *nyalav1.WriteOp) (string, error) {
	var rec nyalav1.ReplicaRecord
	if err := proto.Unmarshal(d.Record, &rec); err != nil {
		return "", fmt.Errorf("the replica's record: %w", err)
	}
	if v := rec.GetSchema().GetVersion(); v != w.GetSchemaVersion() {
		return "", fmt.Errorf("the replica was made with schema version %d", v)
	}
	s, err := schema.FromProto(rec.GetSchema())
	if err != nil {
		return "", err
	}
	var b strings.Builder
	dec := schema.NewOpsDecoder(s, w.GetRowOperations().GetRows(), w.GetRowOperations().GetIndirectData())
	for {
		op, err := dec.Next()
		if err != nil {
			return "", err
		}
		if op == nil {
			return b.String(), nil
		}
		fmt.Fprintf(&b, " %s(", op.Type)
		sep := ""
		for i := range s.NumColumns() {
			if op.IsSet(i) {
				c := s.Column(i)
				fmt.Fprintf(&b, "%s%s=%s", sep, c.Name, quoted(c, op.Value(i)))
				sep = ", "
			}
		}
		b.WriteByte(')')
	}
}

// quoted is a cell as text, in quotes where it is text itself.
func quoted(c *schema.Column, v schema.Value) string {
	text := c.FormatText(v)
	if (c.Type == schema.String || c.Type == schema.Varchar) && !v.IsNull() {
		return fmt.Sprintf("%q", text)
	}
	return text
}
