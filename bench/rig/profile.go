package rig

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"

	"github.com/nyaladb/nyala/internal/localcluster"
)

// Profile takes a CPU profile of each server for so many seconds, into DIR/NAME.pb.gz. It returns when they are there.
func Profile(ctx context.Context, dir string, seconds int, servers []localcluster.Server) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var all sync.WaitGroup
	errs := make([]error, len(servers))
	for i, s := range servers {
		all.Go(func() { errs[i] = profile(ctx, filepath.Join(dir, s.Name+".pb.gz"), seconds, s) })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("profile of %s: %w", servers[i].Name, err)
		}
	}
	return nil
}

func profile(ctx context.Context, file string, seconds int, s localcluster.Server) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", s.Web, seconds), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, resp.Body); err != nil {
		return err
	}
	return f.Close()
}
