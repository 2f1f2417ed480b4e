package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

func (a *app) perfCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "perf", Short: "measure a cluster"}
	cmd.AddCommand(a.perfLoadgen(), a.perfTableScan())
	return cmd
}

// loadgenFlags are Kudu's, with Kudu's defaults.
type loadgenFlags struct {
	table       string
	keep        bool
	threads     int
	rows        uint64
	hash        int
	ranges      int
	replicas    int
	database    string
	seqStart    int64
	random      bool
	randomKey   bool
	randomRest  bool
	stringLen   int
	stringFixed string
	upsert      bool
	runScan     bool
	cleanup     bool
	perFlush    int
	bufferBytes int
	showErrors  int
	via         string
	format      choice
}

func (a *app) perfLoadgen() *cobra.Command {
	f := loadgenFlags{format: choice{value: "text", words: []string{"text", "json"}}}
	cmd := &cobra.Command{
		Use:   "loadgen",
		Short: "insert generated rows, and say how fast that was",
		Long: `Insert generated rows into a table of its own, which is dropped afterwards, or into one that is there (--table_name). The options
and the rows are those of "kudu perf loadgen": columns key int64, int_val int32 and string_val string; every cell takes the next
number of a sequence that each thread has for itself, or a random one.`,
		Example: `  nyala perf loadgen --num_threads 2 --num_rows_per_thread 1000000 --table_num_replicas 3
  nyala perf loadgen --table_name t --use_random --run_scan`,
		Args: cobra.NoArgs,
	}
	fl := cmd.Flags()
	fl.StringVar(&f.table, "table_name", "", "a table that is there; default: one that is made for the run")
	fl.BoolVar(&f.keep, "keep_auto_table", false, "keep the table that was made for the run")
	fl.IntVar(&f.threads, "num_threads", 2, "how many threads insert, each with a session of its own")
	fl.Uint64Var(&f.rows, "num_rows_per_thread", 1000, "rows that each thread inserts")
	fl.IntVar(&f.hash, "table_num_hash_partitions", 8, "hash partitions of the table that is made")
	fl.IntVar(&f.ranges, "table_num_range_partitions", 1, "ranges of the table that is made: they divide a sequence evenly")
	fl.StringVar(&f.database, "auto_database", "", "what the name of the table that is made begins with, a point between")
	fl.IntVar(&f.replicas, "table_num_replicas", 1, "replicas of each tablet of the table that is made")
	fl.Int64Var(&f.seqStart, "seq_start", 0, "where the sequence of the first thread begins")
	fl.BoolVar(&f.random, "use_random", false, "random numbers instead of a sequence")
	fl.BoolVar(&f.randomKey, "use_random_pk", false, "random numbers for the key alone")
	fl.BoolVar(&f.randomRest, "use_random_non_pk", false, "random numbers for all but the key")
	fl.IntVar(&f.stringLen, "string_len", 32, "characters of a generated string")
	fl.StringVar(&f.stringFixed, "string_fixed", "", "this text for every string instead of a generated one")
	fl.BoolVar(&f.upsert, "use_upsert", false, "upsert instead of insert")
	fl.BoolVar(&f.runScan, "run_scan", false, "count the rows afterwards, and compare")
	fl.BoolVar(&f.cleanup, "run_cleanup", false, "delete the inserted rows at the end, after the scan")
	fl.IntVar(&f.perFlush, "flush_per_n_rows", 0, "flush by hand after this many rows of a thread; 0: in the background")
	fl.IntVar(&f.bufferBytes, "buffer_size_bytes", 64<<20, "bytes that each session buffers")
	fl.IntVar(&f.showErrors, "show_first_n_errors", 0, "how many row errors to show")
	fl.StringVar(&f.via, "via", "", "the tablet server, by UUID or RPC address, that all writes go to")
	fl.Var(&f.format, "format", "how to print the report")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, _ []string) error {
		if err := f.check(); err != nil {
			return err
		}
		return a.loadgen(cmd.Context(), c, f)
	})
	return cmd
}

func (f *loadgenFlags) check() error {
	switch {
	case f.threads < 1 || f.threads > 1024:
		return usageError("--num_threads %d: choose 1 to 1024", f.threads)
	case f.rows == 0 || f.rows > 1<<40:
		return usageError("--num_rows_per_thread %d: choose 1 to %d", f.rows, uint64(1)<<40)
	case f.hash < 1:
		return usageError("--table_num_hash_partitions %d: choose 1 or more", f.hash)
	case f.ranges < 1 || f.ranges > 1000:
		return usageError("--table_num_range_partitions %d: choose 1 to 1000", f.ranges)
	case f.stringLen < 0 || f.stringLen > schema.MaxCellSize:
		return usageError("--string_len %d: choose 0 to %d", f.stringLen, schema.MaxCellSize)
	case f.perFlush < 0:
		return usageError("--flush_per_n_rows %d: choose a number of rows, or 0", f.perFlush)
	case f.bufferBytes < 1:
		return usageError("--buffer_size_bytes %d: choose 1 or more", f.bufferBytes)
	case f.cleanup && (f.random || f.randomKey):
		return usageError("--run_cleanup finds the rows again by their keys, which mustn't be random: leave out --use_random and --use_random_pk")
	}
	return nil
}

// loadgenReport is what a run came to.
type loadgenReport struct {
	Table     string  `json:"table"`
	Rows      uint64  `json:"rows"`
	Errors    uint64  `json:"errors"`
	Seconds   float64 `json:"seconds"`
	RowsPerS  float64 `json:"rows_per_s"`
	Scanned   *uint64 `json:"scanned_rows,omitempty"`
	Deleted   *uint64 `json:"deleted_rows,omitempty"`
	MSPerRow  float64 `json:"ms_per_row"`
	firstErrs []string
}

func (a *app) loadgen(ctx context.Context, c *client.Client, f loadgenFlags) error {
	via, err := tabletServer(ctx, c, f.via)
	if err != nil {
		return err
	}
	var t *client.Table
	if f.table != "" {
		t, err = openTable(ctx, c, f.table)
	} else {
		t, err = c.CreateTable(ctx, loadgenTable(f))
	}
	if err != nil {
		return err
	}
	if f.table == "" && !f.keep {
		defer func() {
			if derr := c.DeleteTable(context.WithoutCancel(ctx), t.Name()); derr != nil {
				a.note("table %s is left: %v", quoteName(t.Name()), derr)
			}
		}()
	}
	a.note("inserting into table %s", quoteName(t.Name()))
	insert := t.NewInsert
	if f.upsert {
		insert = t.NewUpsert
	}
	r, err := runLoadgen(ctx, c, t, f, via, insert)
	if err != nil {
		return err
	}
	for _, e := range r.firstErrs {
		a.note("%s", printable(e))
	}
	if f.runScan {
		n, err := t.Count(ctx, client.ScanOptions{})
		if err != nil {
			return err
		}
		r.Scanned = &n
	}
	switch {
	case f.cleanup && r.Errors > 0:
		a.note("the rows are left: some keys were there before the run, and aren't its own to delete")
	case f.cleanup:
		// A delete leaves out what isn't in the key, so the same rows serve.
		d, err := runLoadgen(ctx, c, t, f, via, t.NewDelete)
		if err != nil {
			return err
		}
		n := d.Rows - d.Errors
		r.Deleted = &n
	}
	if f.format.value == "json" {
		err = printJSON(a.Out, r)
	} else {
		_, err = fmt.Fprintf(a.Out, "INSERT report\n    rows total: %d\n    errors:     %d\n    time total: %.3f ms\n  time per row: %.6f ms\n    rows per s: %.0f\n",
			r.Rows, r.Errors, 1000*r.Seconds, r.MSPerRow, r.RowsPerS)
		if err == nil && r.Scanned != nil {
			_, err = fmt.Fprintf(a.Out, "SCAN report\n    rows:       %d\n", *r.Scanned)
		}
		if err == nil && r.Deleted != nil {
			_, err = fmt.Fprintf(a.Out, "CLEANUP report\n    rows deleted: %d\n", *r.Deleted)
		}
	}
	switch want := r.Rows - r.Errors; {
	case err != nil:
		return err
	case r.Errors > 0:
		return &exitError{code: exitRejected, err: fmt.Errorf("%s rejected (--show_first_n_errors 10 shows some)", plural(int64(r.Errors), "row"))}
	case r.Scanned != nil && f.table == "" && !f.random && !f.randomKey && *r.Scanned != want:
		return fmt.Errorf("%d rows were written, and %d are there", want, *r.Scanned)
	}
	return nil
}

func loadgenTable(f loadgenFlags) client.CreateTableOptions {
	var name [8]byte
	_, _ = rand.Read(name[:]) // never fails
	o := client.CreateTableOptions{
		Name: "loadgen_auto_" + hex.EncodeToString(name[:]),
		Columns: []client.Column{
			{Name: "key", Type: client.Int64}, {Name: "int_val", Type: client.Int32}, {Name: "string_val", Type: client.String},
		},
		PrimaryKey: []string{"key"}, Replicas: f.replicas,
	}
	if f.database != "" {
		o.Name = f.database + "." + o.Name
	}
	if f.hash > 1 {
		o.Hash = []client.HashPartition{{Columns: []string{"key"}, Buckets: f.hash}}
	}
	// The outermost ranges have no ends: keys may be random.
	span := int64(f.threads) * int64(f.rows) * int64(len(o.Columns))
	for i := 1; i < f.ranges; i++ {
		o.Splits = append(o.Splits, []any{f.seqStart + span/int64(f.ranges)*int64(i)})
	}
	return o
}

// runLoadgen applies operations that newOp makes, and returns when all threads have been answered.
func runLoadgen(ctx context.Context, c *client.Client, t *client.Table, f loadgenFlags, via string, newOp func() *client.Operation) (loadgenReport, error) {
	began := time.Now()
	var rows, faults atomic.Uint64
	var mu sync.Mutex
	var failure error
	var shown []string
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var threads sync.WaitGroup
	for i := range f.threads {
		threads.Go(func() {
			s := c.NewSession(client.SessionOptions{Flush: client.BackgroundFlush, BufferBytes: f.bufferBytes, Via: via})
			note := func(errs []client.RowError) {
				faults.Add(uint64(len(errs)))
				mu.Lock()
				defer mu.Unlock()
				for _, e := range errs {
					if len(shown) < f.showErrors {
						shown = append(shown, e.Error())
					}
				}
			}
			err := generate(ctx, s, newOp(), t, f, i, &rows, note)
			errs, cerr := s.Close(ctx)
			note(errs)
			if err = errors.Join(err, cerr); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if failure == nil {
					failure = err
					cancel()
				}
			}
		})
	}
	threads.Wait()
	seconds := time.Since(began).Seconds()
	n := rows.Load()
	return loadgenReport{
		Table: t.Name(), Rows: n, Errors: faults.Load(), Seconds: seconds, RowsPerS: float64(n) / seconds,
		MSPerRow: 1000 * seconds / float64(max(n, 1)), firstErrs: shown,
	}, failure
}

// generate applies one thread's rows.
func generate(
	ctx context.Context, s *client.Session, op *client.Operation, t *client.Table, f loadgenFlags, thread int, rows *atomic.Uint64, note func([]client.RowError),
) error {
	columns := t.Schema().NumColumns()
	g := generator{
		next: f.seqStart + int64(thread)*int64(f.rows)*int64(columns), fixed: f.stringFixed, length: f.stringLen,
		text: make([]byte, 0, f.stringLen+20),
	}
	for n := range f.rows {
		op.Reset()
		g.text = g.text[:0]
		for i := range columns {
			col := t.Schema().Column(i)
			v, err := g.value(col, f.random || f.randomKey && col.Key || f.randomRest && !col.Key)
			if err != nil {
				return err
			}
			if err := op.SetValue(i, v); err != nil {
				return err
			}
		}
		if err := s.Apply(ctx, op); err != nil {
			return err
		}
		rows.Add(1)
		if f.perFlush > 0 && (n+1)%uint64(f.perFlush) == 0 {
			errs, err := s.Flush(ctx)
			note(errs)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// generator makes cells of numbers: each cell takes the next of the sequence, or a random one.
type generator struct {
	next   int64
	fixed  string
	length int
	text   []byte // of the row under way
}

func (g *generator) value(c *client.Column, random bool) (client.Value, error) {
	n := g.next
	g.next++
	if random {
		n = mathrand.Int64()
	}
	switch c.Type {
	case client.Int8:
		return client.IntValue(int64(int8(n))), nil
	case client.Int16:
		return client.IntValue(int64(int16(n))), nil
	case client.Int32:
		return client.IntValue(int64(int32(n))), nil
	case client.Int64, client.UnixtimeMicros:
		return client.IntValue(n), nil
	case client.Bool:
		return client.BoolValue(n%2 == 1), nil
	case client.Float, client.Double:
		return client.FloatValue(float64(int32(n))), nil
	case client.String, client.Varchar, client.Binary:
		if g.fixed != "" {
			return client.BytesValue([]byte(g.fixed)), nil
		}
		// The number, a point, and as many letters as are missing: all different, and of one length.
		start := len(g.text)
		g.text = append(strconv.AppendInt(g.text, n, 10), '.')
		for len(g.text) < start+g.length {
			g.text = append(g.text, 'x')
		}
		g.text = g.text[:start+g.length]
		return client.BytesValue(g.text[start:]), nil
	case client.Date:
		return client.IntValue(int64(uint64(n) % 40000)), nil
	default:
		if c.Nullable {
			return client.Null(), nil
		}
		return client.Value{}, usageError("column %q: loadgen makes no %s", c.Name, c.TypeName())
	}
}

func (a *app) perfTableScan() *cobra.Command {
	var f readFlags
	var columns, via string
	var threads int
	var countOnly bool
	format := choice{value: "text", words: []string{"text", "json"}}
	cmd := &cobra.Command{
		Use:   "table_scan TABLE",
		Short: "read a table without printing it, and say how fast that was",
		Args:  cobra.ExactArgs(1),
	}
	f.add(cmd)
	cmd.Flags().StringVar(&columns, "columns", "", "the columns to read, separated by commas (default: all)")
	cmd.Flags().BoolVar(&countOnly, "row_count_only", false, "read no column, only the number of rows")
	cmd.Flags().IntVar(&threads, "num_threads", 5, "how many tablets to read at once")
	cmd.Flags().StringVar(&via, "via", "", "the tablet server, by UUID or RPC address, that is to serve all of it (at a snapshot)")
	cmd.Flags().Var(&format, "format", "how to print the report")
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		if threads < 1 || threads > 1024 {
			return usageError("--num_threads %d: choose 1 to 1024", threads)
		}
		ctx := cmd.Context()
		t, err := openTable(ctx, c, args[0])
		if err != nil {
			return err
		}
		if via != "" {
			if f.replica, err = tabletServer(ctx, c, via); err != nil {
				return err
			}
			f.mode.value = readAtSnapshot
		}
		o, err := f.options(t)
		if err != nil {
			return err
		}
		if o.CountOnly = countOnly; columns != "" {
			if o.Columns, err = parseNames(columns); err != nil {
				return usageError("--columns %q: %w", columns, err)
			}
		}
		if o.Limit != 0 {
			return usageError("--limit can't be divided among threads; nyala table scan takes it")
		}
		began := time.Now()
		rows, bytes, err := scanAll(ctx, t, o, threads)
		if err != nil {
			return err
		}
		seconds := time.Since(began).Seconds()
		if format.value == "json" {
			return printJSON(a.Out, struct {
				Table    string  `json:"table"`
				Rows     uint64  `json:"rows"`
				Bytes    uint64  `json:"bytes"`
				Seconds  float64 `json:"seconds"`
				RowsPerS float64 `json:"rows_per_s"`
			}{t.Name(), rows, bytes, seconds, float64(rows) / seconds})
		}
		_, err = fmt.Fprintf(a.Out, "Scanned count %d cost %.3f seconds (%.0f rows/s, %.1f MiB/s)\n", rows, seconds, float64(rows)/seconds,
			float64(bytes)/seconds/(1<<20))
		return err
	})
	return cmd
}

// scanAll reads a scan's tokens, several at once.
func scanAll(ctx context.Context, t *client.Table, o client.ScanOptions, threads int) (rows, bytes uint64, err error) {
	tokens, err := t.ScanTokens(ctx, o)
	if err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var totalRows, totalBytes, next atomic.Uint64
	var workers sync.WaitGroup
	for range min(threads, len(tokens)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; i < uint64(len(tokens)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				r, b, err := readToken(ctx, tokens[i])
				totalRows.Add(r)
				totalBytes.Add(b)
				if err != nil {
					cancel(err)
				}
			}
		})
	}
	workers.Wait()
	return totalRows.Load(), totalBytes.Load(), context.Cause(ctx)
}

func readToken(ctx context.Context, k *client.ScanToken) (rows, bytes uint64, err error) {
	sc, err := k.Scan(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer sc.Close()
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return rows, bytes, nil
		}
		if err != nil {
			return rows, bytes, err
		}
		rows += uint64(b.Rows)
		if b.Record != nil {
			for _, col := range b.Record.Columns() {
				for _, buf := range col.Data().Buffers() {
					if buf != nil {
						bytes += uint64(buf.Len())
					}
				}
			}
		}
		b.Release()
	}
}
