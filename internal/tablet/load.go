package tablet

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/schema"
)

// load reads all records of a replica; nil if there are none.
func (s *Store) load(n ident.LocalNumber) (*Tablet, error) {
	v, found, err := s.get(appendRecordKey(nil, n, kindState))
	if err != nil || !found {
		return nil, err
	}
	state, err := decodeState(v)
	if err != nil {
		return nil, fmt.Errorf("replica %d: %w", n, err)
	}
	rec, config := new(nyalav1.ReplicaRecord), new(nyalav1.RaftConfig)
	if err := s.getMessage(n, kindReplica, "replica", rec); err != nil {
		return nil, err
	}
	if err := s.getMessage(n, kindConfig, "config", config); err != nil {
		return nil, err
	}
	schemas, err := s.loadSchemas(n)
	if err != nil {
		return nil, fmt.Errorf("tablet %s: %w", rec.GetTabletId(), err)
	}
	meta := newTabletMeta(rec, config, schemas)
	t, err := newTablet(s, n, rec, meta.current)
	if err != nil {
		return nil, err
	}
	t.meta.Store(meta)
	t.state.Store(&state)
	if err := s.loadRequests(t); err != nil {
		return nil, fmt.Errorf("tablet %s: %w", rec.GetTabletId(), err)
	}
	return t, nil
}

func (s *Store) getMessage(n ident.LocalNumber, kind byte, what string, m proto.Message) error {
	v, found, err := s.get(appendRecordKey(nil, n, kind))
	if err == nil && !found {
		err = fmt.Errorf("the %s record is missing", what)
	}
	if err == nil {
		err = decodeMessage(v, what, m)
	}
	if err != nil {
		return fmt.Errorf("replica %d: %w", n, err)
	}
	return nil
}

// loadSchemas reads all versions of the replica's schema.
func (s *Store) loadSchemas(n ident.LocalNumber) (map[uint32]*schema.Schema, error) {
	schemas := map[uint32]*schema.Schema{}
	err := s.eachRecord(n, kindSchema, func(_, v []byte) error {
		m := new(nyalav1.Schema)
		if err := decodeMessage(v, "schema", m); err != nil {
			return err
		}
		sc, err := schema.FromProto(m)
		if err != nil {
			return fmt.Errorf("schema record of version %d: %w", m.GetVersion(), err)
		}
		schemas[sc.Version()] = sc
		return nil
	})
	if err == nil && len(schemas) == 0 {
		err = errors.New("the schema record is missing")
	}
	return schemas, err
}

// loadRequests fills the tablet's request table.
func (s *Store) loadRequests(t *Tablet) error {
	clients := map[ClientID]clientRecord{}
	err := s.eachRecord(t.number, kindClient, func(body, v []byte) error {
		rec, err := decodeClient(v)
		if err == nil && len(body) != len(ClientID{}) {
			err = fmt.Errorf("client record: its key has %d bytes, want %d", len(body), len(ClientID{}))
		}
		if err == nil {
			clients[ClientID(body)] = rec
		}
		return err
	})
	if err != nil {
		return err
	}
	var requests []storedRequest
	err = s.eachRecord(t.number, kindRequest, func(body, v []byte) error {
		ts, hasErrors, err := decodeRequestTimestamp(v)
		if err != nil {
			return err
		}
		if len(body) != len(ClientID{})+8 {
			return fmt.Errorf("request record: its key has %d bytes, want %d", len(body), len(ClientID{})+8)
		}
		r := storedRequest{
			id: ClientID(body[:len(ClientID{})]), seq: binary.BigEndian.Uint64(body[len(ClientID{}):]),
			timestamp: ts, hasErrors: hasErrors,
		}
		if _, ok := clients[r.id]; !ok {
			return fmt.Errorf("request record of client %s, of which there is no record", r.id)
		}
		requests = append(requests, r)
		return nil
	})
	if err != nil {
		return err
	}
	t.requests.restore(clients, requests)
	return nil
}

// loadRequest reads the answer to one request.
func (s *Store) loadRequest(n ident.LocalNumber, id ClientID, seq uint64) (hybridtime.Timestamp, []*nyalav1.RowError, error) {
	v, found, err := s.get(appendRequestKey(nil, n, id, seq))
	if err == nil && !found {
		err = errors.New("the request record is missing")
	}
	if err != nil {
		return 0, nil, err
	}
	return decodeRequest(v)
}

// answer is the row errors of one request, for callers outside a batch.
func (s *Store) answer(n ident.LocalNumber, id ClientID, seq uint64) ([]*nyalav1.RowError, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	_, rowErrors, err := s.loadRequest(n, id, seq)
	return rowErrors, err
}

// eachRecord calls fn with the key's body and the value of each record of one kind, in key order.
func (s *Store) eachRecord(n ident.LocalNumber, kind byte, fn func(body, v []byte) error) error {
	lower, upper := kindBounds(n, kind)
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err == nil {
			_, _, body, ok := splitKey(it.Key())
			if !ok {
				err = errors.New("a key without its end")
			} else {
				err = fn(body, v)
			}
		}
		if err != nil {
			return errors.Join(fmt.Errorf("at %v: %w", keyFormatter(it.Key()), err), it.Close())
		}
	}
	return errors.Join(it.Error(), it.Close())
}
