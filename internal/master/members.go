package master

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/replica"
)

// membersEvery is how often the leading master looks whether a tablet server has gone silent.
const membersEvery = 500 * time.Millisecond

// members is the list of the cluster's servers, masters and living tablet servers, as the leading master names it to all:
// each pair of them swaps beats. Its version rises from one list to the next, over leaderships too.
type members struct {
	wake chan struct{} // holds a token while the list may have changed

	mu      sync.Mutex
	version uint64 // 0: this master doesn't lead, or has made no list so far
	list    []*nyalav1.ServerAddress
}

// newer returns the list and its version where that isn't the caller's.
func (l *members) newer(than uint64) ([]*nyalav1.ServerAddress, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version == than {
		return nil, than
	}
	return l.list, l.version
}

// set takes a list over and says whether it differs from the one before.
func (l *members) set(term ident.Term, list []*nyalav1.ServerAddress) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version>>32 == uint64(term) && slices.EqualFunc(l.list, list, func(a, b *nyalav1.ServerAddress) bool { return proto.Equal(a, b) }) {
		return false
	}
	l.version = max(l.version, uint64(term)<<32) + 1
	l.list = list
	return true
}

func (l *members) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.version, l.list = 0, nil
}

// keepMembers keeps the list while this master leads in term.
func (m *Master) keepMembers(ctx context.Context, term ident.Term) error {
	defer m.members.clear()
	began := time.Now()
	t := time.NewTicker(membersEvery)
	defer t.Stop()
	for {
		if list := m.listMembers(began, time.Now()); m.members.set(term, list) {
			_, version := m.members.newer(0)
			m.node.SetServers(version, replica.ServersFromProto(list))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.members.wake:
		case <-t.C:
		}
	}
}

// listMembers names the masters and the living tablet servers, by id. At the beginning of a leadership a tablet server with
// replicas counts as alive that had no time to be heard: else every change of leaders would make all servers forget each
// other for a moment.
func (m *Master) listMembers(began, now time.Time) []*nyalav1.ServerAddress {
	byID := map[string]*nyalav1.ServerAddress{}
	add := func(id, address string, master bool) {
		byID[id] = &nyalav1.ServerAddress{ServerId: id, RpcAddress: address, Master: master}
	}
	if now.Sub(began) <= m.servers.unresponsive {
		m.catalog.mu.RLock()
		for _, ti := range m.catalog.tablets {
			if ti.table.deleted() {
				continue
			}
			for _, p := range ti.meta.GetConfig().GetPeers() {
				add(p.GetServerId(), p.GetAddress(), false)
			}
		}
		m.catalog.mu.RUnlock()
	}
	for _, s := range m.servers.alive(now) {
		add(string(s.id), s.address, false)
	}
	for _, info := range m.masters() {
		if len(info.GetRpcAddresses()) > 0 {
			add(info.GetServerId(), info.GetRpcAddresses()[0], true)
		}
	}
	list := make([]*nyalav1.ServerAddress, 0, len(byID))
	for _, s := range byID {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *nyalav1.ServerAddress) int { return cmp.Compare(a.GetServerId(), b.GetServerId()) })
	return list
}
