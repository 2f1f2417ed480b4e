package master

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/array"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
	"github.com/nyaladb/nyala/internal/tablet"
)

// entryKind says what a row of the catalog's tablet describes; it is the first column of its key. The format is that of
// docs/format/catalog.md.
type entryKind int8

const (
	entryTable   entryKind = 1
	entryTablet  entryKind = 2
	entryCluster entryKind = 3
)

func (k entryKind) message() proto.Message {
	switch k {
	case entryTable:
		return &nyalav1.CatalogTable{}
	case entryTablet:
		return &nyalav1.CatalogTablet{}
	case entryCluster:
		return &nyalav1.CatalogCluster{}
	default:
		return nil
	}
}

// catalogRow is a row to be written or removed, or one that was read.
type catalogRow struct {
	kind     entryKind
	id       string
	metadata proto.Message
	remove   bool
}

// sysCatalog is the catalog's tablet.
type sysCatalog struct {
	node *replica.Node
}

const (
	columnKind = iota
	columnID
	columnMetadata
)

func catalogSchema() (*schema.Schema, error) {
	return schema.New([]schema.Column{
		{ID: columnKind, Name: "entry_type", Type: schema.Int8, Key: true},
		{ID: columnID, Name: "entry_id", Type: schema.String, Key: true},
		{ID: columnMetadata, Name: "metadata", Type: schema.Binary},
	}, 0, 3)
}

// createReplica makes this master's replica of the catalog where it has none.
func (c sysCatalog) createReplica(ctx context.Context, self *nyalav1.MasterInfo) error {
	if _, err := c.node.Replicas.Replica(ident.CatalogTablet); err == nil {
		return nil
	}
	s, err := catalogSchema()
	if err != nil {
		return err
	}
	return c.node.Replicas.Create(ctx, &nyalav1.ReplicaRecord{
		TabletId:        string(ident.CatalogTablet),
		TableName:       "nyala.catalog",
		Schema:          s.ToProto(),
		PartitionSchema: &nyalav1.PartitionSchema{},
		Partition:       &nyalav1.Partition{},
		ReplicaId:       1,
		Config: &nyalav1.RaftConfig{
			Peers:         []*nyalav1.Peer{{ReplicaId: 1, ServerId: self.GetServerId(), Address: self.GetRpcAddresses()[0]}},
			NextReplicaId: 2,
		},
	})
}

// leads says whether this master leads the catalog's group and can write to it, and in which term.
func (c sysCatalog) leads() (ident.Term, bool) {
	r, err := c.node.Replicas.Replica(ident.CatalogTablet)
	if err != nil {
		return 0, false
	}
	return r.Leadership()
}

// barrier returns once every write that this master has sent is decided: what can't be read by then never will be.
func (c sysCatalog) barrier(ctx context.Context) error {
	r, err := c.node.Replicas.Replica(ident.CatalogTablet)
	if err != nil {
		return err
	}
	return r.Barrier(ctx)
}

// write makes all of rows appear or go in one step.
func (c sysCatalog) write(ctx context.Context, rows []catalogRow) error {
	r, err := c.node.Replicas.Replica(ident.CatalogTablet)
	if err != nil {
		return err
	}
	s, err := catalogSchema()
	if err != nil {
		return err
	}
	enc := schema.NewOpsEncoder(s)
	for _, row := range rows {
		values := []schema.Value{schema.IntValue(int64(row.kind)), schema.StringValue(row.id), {}}
		op, set := schema.Delete, schema.NewBitmap(s.NumColumns())
		set.Set(columnKind)
		set.Set(columnID)
		if !row.remove {
			data, err := proto.MarshalOptions{Deterministic: true}.Marshal(row.metadata)
			if err != nil {
				return fmt.Errorf("encode catalog row %q: %w", row.id, err)
			}
			op, values[columnMetadata] = schema.Upsert, schema.BytesValue(data)
			set.Set(columnMetadata)
		}
		if err := enc.Append(op, values, set); err != nil {
			return fmt.Errorf("catalog row %q: %w", row.id, err)
		}
	}
	data, indirect := enc.Bytes()
	resp, err := r.Write(ctx, &nyalav1.WriteRequest{
		TabletId: string(ident.CatalogTablet), RowOperations: &nyalav1.RowOperations{Rows: data, IndirectData: indirect},
	})
	if err != nil {
		return fmt.Errorf("write to the catalog: %w", err)
	}
	if e := resp.GetRowErrors(); len(e) > 0 {
		return status.New(status.Code(e[0].GetCode()), "write to the catalog: row %d: %s", e[0].GetRowIndex(), e[0].GetMessage())
	}
	return nil
}

// read calls fn with every row, tables before tablets.
func (c sysCatalog) read(ctx context.Context, fn func(*catalogRow) error) error {
	r, err := c.node.Replicas.Replica(ident.CatalogTablet)
	if err != nil {
		return err
	}
	t, snapshot, err := r.ReadPoint(ctx, nyalav1.ReadMode_READ_MODE_READ_LATEST, 0, 0)
	if err != nil {
		return err
	}
	sc, err := t.NewScanner(tablet.ScanSpec{Columns: []int{columnKind, columnID, columnMetadata}, Snapshot: snapshot})
	if err != nil {
		return err
	}
	defer sc.Close()
	for more := true; more; {
		var block tablet.Block
		if block, more, err = sc.Next(ctx, 1<<20); err != nil {
			return err
		}
		if err := readBlock(block, fn); err != nil {
			return err
		}
	}
	return nil
}

func readBlock(b tablet.Block, fn func(*catalogRow) error) error {
	if b.Record == nil {
		return nil
	}
	defer b.Record.Release()
	kinds := b.Record.Column(columnKind).(*array.Int8)
	ids := b.Record.Column(columnID).(*array.String)
	data := b.Record.Column(columnMetadata).(*array.Binary)
	for i := range b.Rows {
		row := &catalogRow{kind: entryKind(kinds.Value(i)), id: ids.Value(i)}
		if row.metadata = row.kind.message(); row.metadata == nil {
			return status.New(status.NotSupported, "catalog row %q is of kind %d, which this version doesn't know", row.id, row.kind)
		}
		if err := proto.Unmarshal(data.Value(i), row.metadata); err != nil {
			return status.Wrap(status.Corruption, err, "catalog row %q of kind %d", row.id, row.kind)
		}
		if err := fn(row); err != nil {
			return err
		}
	}
	return nil
}
