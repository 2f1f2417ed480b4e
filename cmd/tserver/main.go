package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/daemon"
	"github.com/nyaladb/nyala/internal/daemon/buildinfo"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/replica"
	"github.com/nyaladb/nyala/internal/rpc"
	"github.com/nyaladb/nyala/internal/tserver"
)

const example = `nyala-tserver --fs_wal_dir=/var/lib/nyala-tserver --tserver_master_addrs=master.example.com:7051 \
    --rpc_bind_addresses=0.0.0.0:7050 --rpc_advertised_addresses=this-host.example.com:7050 \
    --webserver_interface=0.0.0.0 --webserver_port=8050 --log_dir=/var/log/nyala`

func main() {
	os.Exit(program().Main(context.Background()))
}

func program() daemon.Program {
	common := daemon.DefaultCommon(daemon.TabletServerDefaults)
	cfg := tserver.DefaultConfig()
	node := replica.DefaultNodeConfig()

	flags := daemon.NewFlags()
	common.Register(flags)
	g := flags.Group("Tablet server")
	g.Strings(&cfg.Masters, "tserver_master_addrs", "RPC addresses of all masters; the port is 7051 where it isn't given", daemon.Required(),
		daemon.Checked("host:port,…", func(text string) error { _, err := rpc.ParseAddresses(text, daemon.MasterDefaults.RPCPort); return err }))
	g.Duration(&cfg.HeartbeatInterval, time.Millisecond, "heartbeat_interval_ms", "time between heartbeats to the masters while nothing changes",
		daemon.Tagged(daemon.Advanced), daemon.AtLeast(10))
	g.Duration(&cfg.ScannerTTL, time.Millisecond, "scanner_ttl_ms", "how long a scanner lives that nobody calls", daemon.AtLeast(100))
	g.Int(&cfg.MaxScanners, "scanner_max_open", "most scanners that clients may have open", daemon.Tagged(daemon.Advanced), daemon.AtLeast(1))
	g.Int(&node.Copy.AtOnce, "num_tablets_to_copy_simultaneously", "most tablets that are copied to this server at once, and from it", daemon.AtLeast(1))
	g.Int(&node.Copy.ChunkBytes, "tablet_copy_transfer_chunk_size_bytes", "about how much one message of a tablet copy holds",
		daemon.Tagged(daemon.Advanced), daemon.Between(1, 16<<20))
	g.Duration(&node.Copy.InjectLatency, time.Millisecond, "tablet_copy_download_file_inject_latency_ms", "pause after each message of a tablet copy, for tests",
		daemon.Tagged(daemon.Hidden), daemon.AtLeast(0))
	common.RegisterStorage(flags, &node)

	return daemon.Program{
		Name:    "nyala-tserver",
		Summary: "Nyala's tablet server",
		Example: example,
		Flags:   flags,
		Log:     &common.Log,
		Check:   common.Validate,
		Run: func(ctx context.Context, env *daemon.Environment) error {
			masters, err := daemon.JoinAddresses(cfg.Masters, daemon.MasterDefaults.RPCPort)
			if err != nil {
				return err
			}
			cfg.Masters = masters
			return common.Serve(ctx, env, fs.TabletServer, masters, node, func(n *replica.Node, web *daemon.Web, logger *slog.Logger) (daemon.Role, error) {
				cfg.Registration = &nyalav1.TSRegistration{
					RpcAddresses: n.Addresses(), WebAddresses: web.AdvertisedAddresses(), Version: buildinfo.Get().String(),
				}
				cfg.Logger, cfg.Registerer = logger, env.Registry
				s, err := tserver.New(cfg, n)
				if err != nil {
					return nil, err
				}
				nyalav1.RegisterTabletServiceServer(n.RPC, s.Service())
				nyalav1.RegisterTabletAdminServiceServer(n.RPC, s.AdminService())
				return s, nil
			})
		},
	}
}
