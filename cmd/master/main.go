package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/daemon"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/master"
	"github.com/nyaladb/nyala/internal/replica"
)

const example = `nyala-master --fs_wal_dir=/var/lib/nyala-master \
    --rpc_bind_addresses=0.0.0.0:7051 --rpc_advertised_addresses=this-host.example.com:7051 \
    --webserver_interface=0.0.0.0 --webserver_port=8051 --log_dir=/var/log/nyala`

func main() {
	os.Exit(program().Main(context.Background()))
}

func program() daemon.Program {
	common := daemon.DefaultCommon(daemon.MasterDefaults)
	cfg := master.DefaultConfig()
	node := replica.DefaultNodeConfig()
	var masters []string

	flags := daemon.NewFlags()
	common.Register(flags)
	g := flags.Group("Master")
	g.Strings(&masters, "master_addresses", "RPC addresses of all masters; not set: this one alone. More than one isn't offered by this version")
	g.Int(&cfg.DefaultReplicas, "default_num_replicas", "replication factor of a table whose creator names none: odd", daemon.Between(1, 7))
	g.Int(&cfg.TabletsPerTable, "max_create_tablets_per_table", "most tablets that a table may be created with", daemon.Tagged(daemon.Advanced), daemon.AtLeast(1))
	g.Duration(&cfg.Unresponsive, time.Millisecond, "tserver_unresponsive_timeout_ms", "how long a tablet server may stay silent before it no longer counts as alive",
		daemon.Tagged(daemon.Advanced), daemon.AtLeast(100),
		daemon.NotKudus("10 s, not 60: until then new replicas are placed on a server that is gone; it loses no data, and is counted again at its next heartbeat"))
	g.Duration(&cfg.LocationTTL, time.Millisecond, "table_locations_ttl_ms", "how long clients may keep what they are told of a tablet's place",
		daemon.Tagged(daemon.Advanced), daemon.AtLeast(0))
	common.RegisterStorage(flags, &node)

	return daemon.Program{
		Name:    "nyala-master",
		Summary: "Nyala's master",
		Example: example,
		Flags:   flags,
		Log:     &common.Log,
		Check: func() error {
			var err error
			if len(masters) > 1 {
				err = fmt.Errorf("--master_addresses names %d masters: this version runs one master alone", len(masters))
			}
			return errors.Join(err, common.Validate(), cfg.Validate())
		},
		Run: func(ctx context.Context, env *daemon.Environment) error {
			return common.Serve(ctx, env, fs.Master, masters, node, func(n *replica.Node, web *daemon.Web, logger *slog.Logger) (daemon.Role, error) {
				cfg.Logger, cfg.Registerer = logger, env.Registry
				m, err := master.New(cfg, n, &nyalav1.MasterInfo{
					ServerId: string(n.ServerID()), RpcAddresses: n.Addresses(), WebAddresses: web.AdvertisedAddresses(),
				})
				if err != nil {
					return nil, err
				}
				nyalav1.RegisterMasterServiceServer(n.RPC, m.Service())
				m.AddPages(web)
				return m, nil
			})
		},
	}
}
