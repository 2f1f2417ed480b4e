package cli

import (
	"context"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// dumpFile reads the file of a server that doesn't run.
func (a *app) dumpFile(ctx context.Context, path string, f walFlags, out *walPrinter) error {
	return wal.Dump(ctx, path, ident.TabletID(f.tablet), func(d wal.DumpEntry) error {
		return out.print(d.Proto(f.showValues))
	})
}
