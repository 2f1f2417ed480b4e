package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/fs"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/localcluster"
)

// dumpFolder reads the log in a server's folder: through the server if it runs, else the file itself.
func (a *app) dumpFolder(ctx context.Context, f walFlags, out *walPrinter) error {
	path, addr, err := a.locateWAL(ctx, f.dir)
	switch {
	case err != nil:
		return err
	case addr != "":
		return a.dumpServer(ctx, addr, f, out)
	}
	return a.dumpFile(ctx, path, f, out)
}

// locateWAL finds the log that --dir names: the address of the server that has it open, else the path of the file. A file is
// taken as it is: a backup of wal trim.
func (a *app) locateWAL(ctx context.Context, dir string) (path, addr string, err error) {
	if st, err := os.Stat(dir); err == nil && st.Mode().IsRegular() {
		return dir, "", nil
	}
	if dir, err = findWALFolder(dir); err != nil {
		return "", "", err
	}
	pid, held, err := fs.Holder(dir)
	if err != nil {
		return "", "", fmt.Errorf("folder %s: %w", dir, err)
	}
	if !held {
		return fs.WALPath(dir), "", nil
	}
	instance, err := fs.Inspect(dir)
	if err != nil {
		return "", "", fmt.Errorf("folder %s is in use by process %d, but doesn't say which server that is: %w", dir, pid, err)
	}
	addr = a.addressOf(ctx, dir, instance.ServerID)
	if addr == "" {
		return "", "", fmt.Errorf("folder %s is in use by server %s (pid %d), whose address isn't known here: name it with --server, or its masters with --masters",
			dir, instance.ServerID, pid)
	}
	st, err := getStatus(ctx, addr, min(a.timeout.d, connectTimeout))
	if err != nil {
		return "", "", err
	}
	if st.GetServerId() != string(instance.ServerID) {
		return "", "", fmt.Errorf("folder %s belongs to server %s, but the one at %s is %s: name the right one with --server", dir,
			instance.ServerID, addr, st.GetServerId())
	}
	a.note("read through the running server at %s", addr)
	return "", addr, nil
}

// findWALFolder returns dir, or the folder wal in it (a server's folder in a local cluster): whichever is a WAL folder.
func findWALFolder(dir string) (string, error) {
	if _, err := os.Stat(dir); err != nil {
		return "", err
	}
	for _, d := range []string{dir, filepath.Join(dir, "wal")} {
		for _, path := range []string{fs.InstancePath(d), fs.WALPath(d)} {
			if _, err := os.Stat(path); err == nil {
				return filepath.Abs(d)
			}
		}
	}
	return "", fmt.Errorf("folder %s holds no write-ahead log: give a server's --fs_wal_dir", dir)
}

// addressOf finds a running server's RPC address: in the state file of a local cluster, else by asking the masters; empty if
// neither knows.
func (a *app) addressOf(ctx context.Context, dir string, id ident.ServerID) string {
	for _, up := range []string{"..", filepath.Join("..", "..")} {
		c, err := localcluster.Open(localcluster.Config{Dir: filepath.Join(dir, up)})
		if err != nil {
			continue
		}
		servers, err := c.Servers()
		if err != nil {
			continue
		}
		for _, s := range servers {
			if s.Dir == dir || strings.HasPrefix(dir, s.Dir+string(filepath.Separator)) {
				return s.RPC
			}
		}
	}
	ctx, cancel := withTimeout(ctx, min(a.timeout.d, connectTimeout))
	defer cancel()
	c, err := client.Connect(ctx, client.Options{Masters: a.masterAddresses()})
	if err != nil {
		return ""
	}
	defer c.Close()
	servers, serr := c.ListTabletServers(ctx)
	masters, merr := c.ListMasters(ctx)
	if errors.Join(serr, merr) != nil {
		return ""
	}
	i := slices.IndexFunc(servers, func(s client.TabletServer) bool { return s.ID == string(id) })
	if i >= 0 && len(servers[i].RPCAddresses) > 0 {
		return servers[i].RPCAddresses[0]
	}
	for _, m := range masters {
		if m.ID == string(id) && len(m.RPCAddresses) > 0 {
			return m.RPCAddresses[0]
		}
	}
	return ""
}
