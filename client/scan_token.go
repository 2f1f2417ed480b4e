package client

import (
	"context"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/schema"
	"github.com/nyaladb/nyala/internal/status"
)

// tokenVersion is that of the tokens made here, and the highest that is understood.
const tokenVersion = 1

// ScanToken is one tablet's part of a scan. The parts may be read by other programs on other machines: Serialize here,
// Client.ScanSerialized there. All parts together are the scan, each row once.
type ScanToken struct {
	c     *Client
	token *nyalav1.ScanToken
	// servers are those with a replica, the leader first as far as known: where the part is best read.
	servers []string
}

// ScanTokens divides a scan into one part for each tablet that can hold a matching row, in the order of Scan. A ReadAtSnapshot without a
// timestamp gets the same one for all, which the first tablet's server names. A Limit can't be divided, and is refused.
func (t *Table) ScanTokens(ctx context.Context, o ScanOptions) ([]*ScanToken, error) {
	if o.Limit != 0 {
		return nil, status.New(status.InvalidScanSpec, "scan of table %q: a limit can't be divided among tokens", t.info.Name)
	}
	spec, err := t.scanSpec(o)
	if err != nil {
		return nil, err
	}
	tablets, err := t.tabletsOf(ctx, spec)
	if err != nil {
		return nil, err
	}
	snapshot := o.SnapshotTimestamp
	if len(tablets) > 0 && o.ReadMode == ReadAtSnapshot && snapshot == 0 {
		first := newTabletScan(t, spec, tablets[0], 0, 0)
		_, err := first.next(ctx)
		first.close()
		if err != nil {
			return nil, err
		}
		snapshot = first.snapshot
	}
	tokens := make([]*ScanToken, 0, len(tablets))
	for _, tb := range tablets {
		token := &nyalav1.ScanToken{
			Version: tokenVersion, ClusterId: t.c.ClusterID(), TableId: t.info.ID, TableName: t.info.Name, SchemaVersion: t.schema.Version(),
			TabletId: tb.id, Columns: spec.columns, CountOnly: o.CountOnly, Predicates: spec.predicates, ReadMode: o.ReadMode.proto(),
			SnapshotTimestamp: uint64(snapshot), PropagatedTimestamp: uint64(t.c.LatestTimestamp()),
			ClosestReplica: o.Replica == ClosestReplica, ServerId: o.ServerID, BatchSizeBytes: uint32(spec.options.BatchSizeBytes),
			PartitionKeyStart: tb.start, StartPrimaryKey: spec.options.lowerKey, StopPrimaryKey: spec.options.upperKey,
		}
		tokens = append(tokens, &ScanToken{c: t.c, token: token, servers: tb.serverIDs()})
	}
	return tokens, nil
}

// TabletID names the tablet that the token reads.
func (k *ScanToken) TabletID() string { return k.token.GetTabletId() }

// Servers are the ids of the tablet servers with a replica of the tablet as of when the token was made, the leader first if known.
func (k *ScanToken) Servers() []string { return k.servers }

// Scan reads the token's part with the client that made it.
func (k *ScanToken) Scan(ctx context.Context) (*Scanner, error) { return k.c.scanToken(ctx, k.token) }

// Serialize returns the token as bytes for Client.ScanSerialized, of this version or a later one.
func (k *ScanToken) Serialize() ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(k.token)
	if err != nil {
		return nil, status.Wrap(status.InvalidArgument, err, "encode a scan token")
	}
	return b, nil
}

// ScanSerialized reads the part of a scan that a token made by ScanToken.Serialize describes. The table is found by its id, whatever it
// is called now; that the token is of another cluster, or that a column is gone, is an error.
func (c *Client) ScanSerialized(ctx context.Context, token []byte) (*Scanner, error) {
	k, err := decodeToken(token)
	if err != nil {
		return nil, err
	}
	return c.scanToken(ctx, k)
}

// decodeToken reads a token that came from anywhere.
func decodeToken(b []byte) (*nyalav1.ScanToken, error) {
	k := new(nyalav1.ScanToken)
	if err := proto.Unmarshal(b, k); err != nil {
		return nil, status.Wrap(status.InvalidArgument, err, "not a scan token")
	}
	switch {
	case k.GetVersion() == 0 || k.GetTableId() == "" || k.GetTabletId() == "":
		return nil, status.New(status.InvalidArgument, "not a scan token")
	case k.GetVersion() > tokenVersion:
		return nil, status.New(status.NotSupported, "the scan token is of version %d, this client knows %d: use a newer client", k.GetVersion(), tokenVersion)
	case len(k.GetColumns()) == 0 && !k.GetCountOnly():
		return nil, status.New(status.InvalidArgument, "the scan token names no columns")
	}
	return k, nil
}

// scanOptions are the token's.
func scanOptions(k *nyalav1.ScanToken) (ScanOptions, error) {
	o := ScanOptions{
		Columns: k.GetColumns(), CountOnly: k.GetCountOnly(), SnapshotTimestamp: hybridtime.Timestamp(k.GetSnapshotTimestamp()),
		ServerID: k.GetServerId(), TabletID: k.GetTabletId(), BatchSizeBytes: int(k.GetBatchSizeBytes()),
		lowerKey: k.GetStartPrimaryKey(), upperKey: k.GetStopPrimaryKey(),
	}
	switch k.GetReadMode() {
	case nyalav1.ReadMode_READ_MODE_READ_LATEST:
		o.ReadMode = ReadLatest
	case nyalav1.ReadMode_READ_MODE_READ_AT_SNAPSHOT:
		o.ReadMode = ReadAtSnapshot
	case nyalav1.ReadMode_READ_MODE_READ_YOUR_WRITES:
		o.ReadMode = ReadYourWrites
	default:
		return o, status.New(status.NotSupported, "the scan token's read mode %d is unknown to this client: use a newer one", k.GetReadMode())
	}
	if k.GetClosestReplica() {
		o.Replica = ClosestReplica
	}
	for _, p := range k.GetPredicates() {
		pred, err := schema.PredicateFromProto(p)
		if err != nil {
			return o, status.Wrap(status.CodeOf(err), err, "the scan token's predicate on column %q", p.GetColumn())
		}
		o.Predicates = append(o.Predicates, pred)
	}
	return o, nil
}

func (c *Client) scanToken(ctx context.Context, k *nyalav1.ScanToken) (*Scanner, error) {
	o, err := scanOptions(k)
	if err != nil {
		return nil, err
	}
	if id := c.ClusterID(); k.GetClusterId() != id {
		return nil, status.New(status.InvalidArgument, "the scan token is of cluster %s, this client is connected to %s", k.GetClusterId(), id)
	}
	t, err := c.openTable(ctx, &nyalav1.TableIdentifier{Id: k.GetTableId()}, "open table "+k.GetTableName()+" of a scan token")
	if err != nil {
		return nil, err
	}
	c.ObserveTimestamp(hybridtime.Timestamp(k.GetPropagatedTimestamp()))
	sc, err := t.Scan(ctx, o)
	if err != nil {
		return nil, err
	}
	sc.walk.cursor = k.GetPartitionKeyStart()
	return sc, nil
}

// serverIDs are the servers with a replica, the leader first.
func (t *tablet) serverIDs() []string {
	replicas, leader := t.locationsNow()
	var ids []string
	if leader != "" {
		ids = append(ids, leader)
	}
	for _, r := range replicas {
		if r.server != leader {
			ids = append(ids, r.server)
		}
	}
	return ids
}
