package tablet

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// requestChanges collects what the request table changes while one operation is applied, so that an operation that fails
// midway leaves nothing in the batch.
type requestChanges struct {
	changes   []requestChange
	forgotten [numForgetReasons]uint64
}

type requestChange struct {
	kind   byte // kindClient or kindRequest
	delete bool
	id     ClientID
	seq    uint64
	client clientRecord
}

var _ requestSink = (*requestChanges)(nil)

func (c *requestChanges) reset() { c.changes, c.forgotten = c.changes[:0], [numForgetReasons]uint64{} }

func (c *requestChanges) putClient(id ClientID, rec clientRecord) {
	c.changes = append(c.changes, requestChange{kind: kindClient, id: id, client: rec})
}

func (c *requestChanges) deleteClient(id ClientID) {
	c.changes = append(c.changes, requestChange{kind: kindClient, delete: true, id: id})
}

func (c *requestChanges) deleteRequest(id ClientID, seq uint64, why forgetReason) {
	c.changes = append(c.changes, requestChange{kind: kindRequest, delete: true, id: id, seq: seq})
	c.forgotten[why]++
}

// emitRequests adds the collected changes, in their order.
func (b *Batch) emitRequests(n ident.LocalNumber) {
	for i := range b.sink.changes {
		c := &b.sink.changes[i]
		switch {
		case c.kind == kindRequest:
			// A request record is set once and removed once, so the removal goes away with it, at the first flush as a rule.
			b.keyBuf = appendRequestKey(b.keyBuf[:0], n, c.id, c.seq)
			must(b.pb.SingleDelete(b.keyBuf, nil))
		case c.delete:
			b.keyBuf = appendClientKey(b.keyBuf[:0], n, c.id)
			must(b.pb.Delete(b.keyBuf, nil))
		default:
			b.keyBuf = appendClientKey(b.keyBuf[:0], n, c.id)
			b.clientBuf = appendClient(b.clientBuf[:0], c.client)
			must(b.pb.Set(b.keyBuf, b.clientBuf, nil))
		}
	}
	for why, k := range b.sink.forgotten {
		b.store.metrics.forgotten[why].Add(float64(k))
	}
}

// emitAnswer adds the answer that stands encoded in valBuf.
func (b *Batch) emitAnswer(p *pending, id ClientID, seq uint64, rowErrors []*nyalav1.RowError) {
	if len(rowErrors) > 0 {
		if p.answers == nil {
			p.answers = map[requestKey][]*nyalav1.RowError{}
		}
		p.answers[requestKey{id, seq}] = rowErrors
	}
	b.keyBuf = appendRequestKey(b.keyBuf[:0], p.t.number, id, seq)
	must(b.pb.Set(b.keyBuf, b.valBuf, nil))
}

func (b *Batch) putMessage(n ident.LocalNumber, kind byte, m proto.Message) error {
	b.keyBuf = appendRecordKey(b.keyBuf[:0], n, kind)
	return b.putMessageAt(b.keyBuf, m)
}

func (b *Batch) putMessageAt(key []byte, m proto.Message) error {
	var err error
	if b.valBuf, err = appendMessage(b.valBuf[:0], m); err != nil {
		return fmt.Errorf("tablet store: encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	must(b.pb.Set(key, b.valBuf, nil))
	return nil
}

func (c *rowCounts) add(o rowCounts) {
	c.inserted += o.inserted
	c.upserted += o.upserted
	c.updated += o.updated
	c.deleted += o.deleted
	c.duplicateKey += o.duplicateKey
	c.failed += o.failed
	c.insertIgnored += o.insertIgnored
	c.updateIgnored += o.updateIgnored
	c.deleteIgnored += o.deleteIgnored
}
