package replica

import (
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/wal"
)

// An answer of DumpWAL holds at most this many entries, and ends before it grows past about this many bytes.
const (
	dumpEntries = 256
	dumpBytes   = 1 << 20
)

// DumpWAL streams the entries of this server's log.
func (s *serverService) DumpWAL(req *nyalav1.DumpWALRequest, stream grpc.ServerStreamingServer[nyalav1.DumpWALResponse]) error {
	resp, bytes := &nyalav1.DumpWALResponse{}, 0
	flush := func() error {
		if len(resp.GetEntries()) == 0 {
			return nil
		}
		full := resp
		resp, bytes = &nyalav1.DumpWALResponse{}, 0
		return stream.Send(full)
	}
	err := s.n.log.Dump(stream.Context(), ident.TabletID(req.GetTabletId()), func(d wal.DumpEntry) error {
		e := d.Proto(req.GetShowValues())
		resp.Entries = append(resp.Entries, e)
		if bytes += len(e.GetValue()); len(resp.GetEntries()) < dumpEntries && bytes < dumpBytes {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}
