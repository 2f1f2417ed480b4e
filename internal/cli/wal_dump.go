package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

func (a *app) walCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "wal", Short: "look into write-ahead logs, repair them"}
	cmd.AddCommand(a.walDump(), a.walCheck(), a.walTrim())
	return cmd
}

// walFlags are what `wal dump` is told.
type walFlags struct {
	dir, server, tablet string
	showValues          bool
}

func (a *app) walDump() *cobra.Command {
	var f walFlags
	cmd := &cobra.Command{
		Use:   "dump --dir FOLDER | --server ADDR",
		Short: "print a server's log, one line per entry",
		Long: `Print the entries of a server's write-ahead log. A running server's log is read through the server, whether it is named by
its address or by its folder; a stopped one's file is opened read-only. The command never waits for a lock.`,
		Example: `  nyala wal dump --server localhost:7050 --tablet 0123456789abcdef0123456789abcdef
  nyala wal dump --dir ~/.nyala/local/tserver-1 --format ndjson --show_values`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&f.dir, "dir", "", "the server's folder (that of --fs_wal_dir, or one of a local cluster), or a file of wal trim")
	cmd.Flags().StringVar(&f.server, "server", "", "the server's RPC address")
	cmd.Flags().StringVar(&f.tablet, "tablet", "", "this tablet alone")
	cmd.Flags().BoolVar(&f.showValues, "show_values", false, "print what the entries hold")
	format := tableFormat(cmd, "how to print them", "ndjson")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if (f.dir == "") == (f.server == "") {
			return usageError("give either --dir or --server")
		}
		out := newWALPrinter(a.Out, format.value, f.showValues)
		var err error
		if f.server != "" {
			err = a.dumpServer(cmd.Context(), f.server, f, out)
		} else {
			err = a.dumpFolder(cmd.Context(), f, out)
		}
		if ferr := out.flush(); err == nil {
			err = ferr
		}
		if err == nil {
			a.note("%s", out.summary())
		}
		return err
	}
	return cmd
}

// dumpServer reads a running server's log through it.
func (a *app) dumpServer(ctx context.Context, addr string, f walFlags, out *walPrinter) error {
	if _, err := getStatus(ctx, addr, min(a.timeout.d, connectTimeout)); err != nil {
		return err
	}
	return streamWAL(ctx, addr, &nyalav1.DumpWALRequest{TabletId: f.tablet, ShowValues: f.showValues}, out.print)
}

// streamWAL calls fn with each entry of a running server's log.
func streamWAL(ctx context.Context, addr string, req *nyalav1.DumpWALRequest, fn func(*nyalav1.WALEntry) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := dial(addr)
	if err != nil {
		return fmt.Errorf("server %s: %w", addr, err)
	}
	defer conn.Close()
	stream, err := nyalav1.NewServerServiceClient(conn).DumpWAL(ctx, req, grpc.WaitForReady(false))
	if err != nil {
		return serverError(addr, err)
	}
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return serverError(addr, err)
		}
		for _, e := range answer.GetEntries() {
			if err := fn(e); err != nil {
				return err
			}
		}
	}
}

// walPrinter prints log entries.
type walPrinter struct {
	w       io.Writer
	json    bool
	values  bool
	buf     []byte
	entries int64
	bad     int64
}

func newWALPrinter(w io.Writer, format string, values bool) *walPrinter {
	return &walPrinter{w: w, json: format == "ndjson", values: values}
}

// walJSON is one entry in `wal dump --format ndjson`.
type walJSON struct {
	Tablet    string  `json:"tablet"`
	Term      uint64  `json:"term"`
	Index     uint64  `json:"index"`
	Kind      string  `json:"kind"`
	Timestamp *string `json:"timestamp"` // null: unstamped
	Bytes     uint64  `json:"bytes"`
	CRCOK     bool    `json:"crc_ok"`
	Value     *string `json:"value,omitempty"`
}

// walLine lines the table up: tablet, opid, kind, timestamp, bytes, CRC. Timestamps have 27 letters, a plus and up to four
// digits of a logical part.
const walLine = "%-32s  %14s  %-8s  %-32s  %8s  %-4s"

func (p *walPrinter) print(e *nyalav1.WALEntry) error {
	p.entries++
	if !e.GetCrcOk() {
		p.bad++
	}
	ts := hybridtime.Timestamp(e.GetTimestamp())
	if p.json {
		j := walJSON{
			Tablet: e.GetTabletId(), Term: e.GetOpId().GetTerm(), Index: e.GetOpId().GetIndex(), Kind: e.GetKind(),
			Bytes: e.GetBytes(), CRCOK: e.GetCrcOk(),
		}
		if ts != 0 {
			text := ts.String()
			j.Timestamp = &text
		}
		if value := e.GetValue(); p.values || value != "" {
			j.Value = &value
		}
		line, err := json.Marshal(j)
		if err != nil {
			return err
		}
		p.buf = append(append(p.buf, line...), '\n')
		return p.spill()
	}
	if p.entries == 1 {
		p.header()
	}
	crc := "ok"
	if !e.GetCrcOk() {
		crc = "BAD"
	}
	line := fmt.Sprintf(walLine, e.GetTabletId(), fmt.Sprintf("%d.%d", e.GetOpId().GetTerm(), e.GetOpId().GetIndex()), e.GetKind(), ts,
		fmt.Sprint(e.GetBytes()), crc)
	if (p.values || !e.GetCrcOk()) && e.GetValue() != "" {
		line += "  " + printable(e.GetValue())
	}
	p.buf = append(append(p.buf, strings.TrimRight(line, " ")...), '\n')
	return p.spill()
}

func (p *walPrinter) header() {
	line := fmt.Sprintf(walLine, "TABLET", "TERM.INDEX", "KIND", "TIMESTAMP", "BYTES", "CRC")
	if p.values {
		line += "  VALUE"
	}
	p.buf = append(append(p.buf, strings.TrimRight(line, " ")...), '\n')
}

// spill writes out what has gathered once it is worth it.
func (p *walPrinter) spill() error {
	if len(p.buf) < 32<<10 {
		return nil
	}
	return p.flush()
}

func (p *walPrinter) flush() error {
	if len(p.buf) == 0 {
		return nil
	}
	_, err := p.w.Write(p.buf)
	p.buf = p.buf[:0]
	return err
}

func (p *walPrinter) summary() string {
	if p.entries == 1 {
		return fmt.Sprintf("1 entry, %d with a bad CRC", p.bad)
	}
	return fmt.Sprintf("%s entries, %d with a bad CRC", thousands(p.entries), p.bad)
}
