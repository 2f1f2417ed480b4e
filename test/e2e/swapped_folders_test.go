package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
	"github.com/nyaladb/nyala/internal/status"
)

// TestSwappedFolders is the part of trial T53 in which two tablet servers are started on each other's folders, WAL and data. Who a server
// is lies in its folders, so each has moved to the other's address: masters, peers and clients, those that know the old addresses too,
// find it there, every row is there, and a call that means the one that was there before is refused.
func TestSwappedFolders(t *testing.T) {
	const rows = 40
	var one, two localcluster.Server // as they were
	members := map[string][]string{}
	inStatesOn(t, 3, func(s state) {
		single, all := numbersTable(t, s.cl, "single", 6, 1), numbersTable(t, s.cl, "all", 2, 3)
		for id := range rows {
			s.insert(single, id, "before")
			s.insert(all, id, "before")
		}
		for _, tbl := range []*client.Table{single, all} {
			members[tbl.Name()] = s.members(tbl)
		}
		one, two = tabletServers(t, s.c)[0], tabletServers(t, s.c)[1]
		if err := s.c.Stop(t.Context(), one.Name); err != nil {
			t.Fatal(err)
		}
		if err := s.c.Kill(two.Name); err != nil {
			t.Fatal(err)
		}
		for _, folder := range []string{"wal", "data"} {
			of := func(server localcluster.Server) string { return filepath.Join(server.Dir, folder) }
			for _, move := range [][2]string{{of(one), of(one) + "-aside"}, {of(two), of(one)}, {of(one) + "-aside", of(two)}} {
				if err := os.Rename(move[0], move[1]); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, server := range []localcluster.Server{one, two} {
			if err := s.c.Start(t.Context(), server.Name); err != nil {
				t.Fatal(err)
			}
		}
		// By the client that has the old addresses, and by a new program.
		for _, tbl := range []*client.Table{single, all} {
			for id := rows; id < 2*rows; id++ {
				s.insert(tbl, id, "after")
			}
			s.load(tbl.Name(), "id,name\n1000,command\n")
		}
	}, func(s state) {
		moved := map[string]string{one.UUID: two.RPC, two.UUID: one.RPC}
		want := []string{"1000 command"}
		for id := range 2 * rows {
			want = append(want, fmt.Sprint(id, " ", []string{"before", "after"}[id/rows]))
		}
		for name, before := range members {
			tbl := s.open(name)
			s.wantRows(name, s.rows(tbl), want...)
			s.wantCount(tbl, name, len(want), "id >= 0")
			if now := s.members(tbl); !slices.Equal(now, before) {
				s.Errorf("%s: the replicas are %q, were %q", name, now, before)
			}
			tablets, err := s.cl.Tablets(s.Context(), tbl)
			if err != nil {
				s.Fatal(err)
			}
			for _, tablet := range tablets {
				for _, r := range tablet.Replicas {
					if address := moved[r.ServerID]; address != "" && r.Address != address {
						s.Errorf("a replica of server %s is said to be at %s, that server is at %s", r.ServerID, r.Address, address)
					}
				}
			}
		}
		servers, err := s.cl.ListTabletServers(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, server := range servers {
			if address := moved[server.ID]; !server.Alive || address != "" && !slices.Equal(server.RPCAddresses, []string{address}) {
				s.Errorf("server %s is said to be at %v, alive %v; it is at %s", server.ID, server.RPCAddresses, server.Alive, address)
			}
			s.wantRows("all, as "+server.ID+" has it", s.scan(s.open("all"), client.ScanOptions{ReadMode: client.ReadAtSnapshot, ServerID: server.ID}), want...)
		}
		var said struct {
			Servers []struct {
				ID  string   `json:"uuid"`
				RPC []string `json:"rpc"`
			} `json:"tablet_servers"`
		}
		list := s.nyala("", "tserver", "list", "--format", "json")
		if err := json.Unmarshal([]byte(list.out), &said); err != nil || len(said.Servers) != 3 {
			s.Fatalf("tserver list: %v, %s%s", err, list.out, list.err)
		}
		for _, server := range said.Servers {
			if address := moved[server.ID]; address != "" && !slices.Equal(server.RPC, []string{address}) {
				s.Errorf("tserver list has server %s at %v; it is at %s", server.ID, server.RPC, address)
			}
		}
		if r := s.nyala("", "cluster", "ksck"); r.code != 0 {
			s.Errorf("ksck: exit code %d\n%s%s", r.code, r.out, r.err)
		}
		local, err := s.c.Status(s.Context())
		if err != nil {
			s.Fatal(err)
		}
		for _, server := range local {
			if address := moved[server.UUID]; address != "" && server.RPC != address {
				s.Errorf("local status has server %s at %s; it is at %s", server.UUID, server.RPC, address)
			}
		}
		for uuid, address := range map[string]string{one.UUID: one.RPC, two.UUID: two.RPC} {
			conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				s.Fatal(err)
			}
			_, err = nyalav1.NewTabletAdminServiceClient(conn).ListScanners(s.Context(), &nyalav1.ListScannersRequest{DestServerId: uuid})
			wantError(s.T, "a call for who was there before", status.FromGRPC(err), status.WrongServerID, "the call is for "+uuid)
			conn.Close()
		}
	})
}

// members lists a table's replicas, each by its tablet, id and server, and shows that no tablet has two with the same id or server.
func (s state) members(tbl *client.Table) (list []string) {
	s.Helper()
	tablets, err := s.cl.Tablets(s.Context(), tbl)
	if err != nil {
		s.Fatal(err)
	}
	for _, tablet := range tablets {
		seen := map[any]bool{}
		for _, r := range tablet.Replicas {
			if seen[r.ID] || seen[r.ServerID] {
				s.Errorf("tablet %s has two replicas with the id %d or on server %s", tablet.ID, r.ID, r.ServerID)
			}
			seen[r.ID], seen[r.ServerID] = true, true
			list = append(list, fmt.Sprint(tablet.ID, " ", r.ID, " ", r.ServerID))
		}
	}
	slices.Sort(list)
	return list
}
