package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/localcluster"
)

const (
	// demoHeldBack is how many rows are loaded only once a server is dead.
	demoHeldBack = 2000
	// demoTimeout bounds the whole demo: something is wrong with a machine that needs longer.
	demoTimeout = 4 * time.Minute

	demoFile    = "examples/flights/flights-2013-01.csv.gz"
	demoTable   = "flights"
	demoColumns = `year int16, month int8, day int8, dep_time int16 null, sched_dep_time int16,
        dep_delay int16 null, arr_time int16 null, sched_arr_time int16, arr_delay int16 null, carrier string,
        flight int16, tailnum string null, origin string, dest string, air_time int16 null, distance int16,
        hour int8, minute int8, time_hour unixtime_micros`
	demoKey  = "time_hour,carrier,flight,origin"
	demoHash = "carrier,flight:4"
)

// demoFlags are what `nyala demo` is told.
type demoFlags struct {
	file, dir, binDir string
	keep              bool
}

func (a *app) demoCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "a cluster, real flights, a killed server, and every answer checked",
		Long: `Run a cluster of one master and three tablet servers on this machine, load the flights that left New York in January 2013, kill
the server that leads most tablets while more are being loaded, start it again, and check every answer against the CSV file
itself. The exit code is 0 only if all are equal. Everything is stopped and deleted at the end.`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().StringVar(&f.file, "file", "", "the flights (default: "+demoFile+" here or beside this program)")
	cmd.Flags().StringVar(&f.dir, "dir", "", "a new folder for the cluster (default: a temporary one)")
	cmd.Flags().StringVar(&f.binDir, "bin_dir", "", "where nyala-master and nyala-tserver are (default: beside nyala, else in PATH)")
	cmd.Flags().BoolVar(&f.keep, "keep", false, "leave the cluster running at the end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		defer surviveClosedPipe()()
		ctx, cancel := context.WithTimeout(cmd.Context(), demoTimeout)
		defer cancel()
		return a.demo(ctx, f)
	}
	return cmd
}

// demo is one run of the demonstration: what it knows so far.
type demo struct {
	*app
	flags    demoFlags
	file     string
	expected *flights
	began    time.Time
	step     int
	wrong    int // answers that weren't as expected

	cluster *localcluster.Cluster
	client  *client.Client
	table   *client.Table
	killed  localcluster.Server
	// orphaned are the tablets that the killed server led.
	orphaned map[string]bool
}

func (a *app) demo(ctx context.Context, f demoFlags) error {
	d := &demo{app: a, flags: f, began: time.Now()}
	var err error
	if d.file, err = findDemoFile(f.file); err != nil {
		return err
	}
	if d.expected, err = readFlights(d.file); err != nil {
		return err
	}
	if f.dir == "" {
		if d.flags.dir, err = os.MkdirTemp("", "nyala-demo-"); err != nil {
			return fmt.Errorf("make a folder for the cluster: %w", err)
		}
	}
	err = d.run(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the demo took longer than %v: %w", demoTimeout, err)
	}
	return errors.Join(err, d.cleanUp(ctx, err))
}

// run takes the steps one after another.
func (d *demo) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		d.startCluster, d.createTable, d.loadMost, d.answerMost, d.killLeader, d.loadRest, d.answerAll, d.startKilled, d.compareReplicas,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if d.wrong > 0 {
		return &exitError{code: exitUnhealthy, err: fmt.Errorf("%s not as the CSV file has it", plural(d.wrong, "answer"))}
	}
	return nil
}

// title begins a step.
func (d *demo) title(format string, args ...any) {
	d.step++
	fmt.Fprintf(d.Out, "\n[%d] %s\n", d.step, fmt.Sprintf(format, args...))
}

// say adds a line to a step.
func (d *demo) say(format string, args ...any) {
	fmt.Fprintln(d.Out, strings.TrimRight("    "+fmt.Sprintf(format, args...), " "))
}

// command shows what would do the same by hand.
func (d *demo) command(format string, args ...any) { d.say("$ nyala "+format, args...) }

// check compares an answer with what the CSV file says.
func (d *demo) check(what string, got, want any) {
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		d.wrong++
		d.say("WRONG: %s: the cluster says %s, the CSV file %s", what, g, w)
		return
	}
	d.say("ok: %s as in the CSV file", what)
}

func (d *demo) startCluster(ctx context.Context) error {
	d.title("A cluster: one master keeps the catalog, three tablet servers keep the rows. Each is a process of its own.")
	d.command("local up --tservers 3 --dir %s", d.flags.dir)
	began := time.Now()
	var err error
	d.cluster, err = localcluster.Up(ctx, localcluster.Config{
		Dir: d.flags.dir, BinDir: d.flags.binDir, Masters: 1, TabletServers: 3, Notify: func(s string) { d.note("    %s", s) },
	})
	if err != nil {
		return err
	}
	servers, err := d.cluster.Servers()
	if err != nil {
		return err
	}
	for _, s := range servers {
		d.say("%-9s  rpc %s  web http://%s/  pid %d", s.Name, s.RPC, s.Web, s.Pid)
	}
	d.say("ready after %s", took(time.Since(began)))
	d.client, err = client.Connect(ctx, client.Options{Masters: d.cluster.MasterAddresses()})
	return err
}

func (d *demo) createTable(ctx context.Context) error {
	d.title("A table. Its rows are spread over four tablets by a hash of carrier and flight; each tablet has three replicas,")
	fmt.Fprintln(d.Out, "    which agree on every write by Raft: one of them leads, a majority must have a row before it is acknowledged.")
	d.command("table create %s --primary_key %s --hash %s --replicas 3 \\\n        --columns \"%s\"", demoTable, demoKey, demoHash, demoColumns)
	o, err := createOptions(demoTable, demoColumns, demoKey, []string{demoHash}, 3)
	if err != nil {
		return err
	}
	began := time.Now()
	if d.table, err = d.client.CreateTable(ctx, o); err != nil {
		return err
	}
	leads, err := d.leaders(ctx)
	if err != nil {
		return err
	}
	d.say("created in %s; %s", took(time.Since(began)), d.describeLeaders(leads))
	return nil
}

// leaders counts the tablets that each server leads, by its uuid.
func (d *demo) leaders(ctx context.Context) (map[string]int, error) {
	tablets, err := d.client.Tablets(ctx, d.table)
	if err != nil {
		return nil, err
	}
	leads := map[string]int{}
	for _, t := range tablets {
		if l, ok := t.Leader(); ok {
			leads[l.ServerID]++
		}
	}
	return leads, nil
}

func (d *demo) describeLeaders(leads map[string]int) string {
	servers, err := d.cluster.Servers()
	if err != nil {
		return err.Error()
	}
	var parts []string
	for _, s := range servers {
		if s.Role == localcluster.RoleTserver {
			parts = append(parts, fmt.Sprintf("%s leads %s", s.Name, plural(leads[s.UUID], "tablet")))
		}
	}
	return strings.Join(parts, ", ")
}

func (d *demo) loadMost(ctx context.Context) error {
	n := len(d.expected.rows) - demoHeldBack
	d.title("Load the flights of January 2013 that left New York, all but the last %s.", thousands(demoHeldBack))
	d.command("table load %s %s --null NA", demoTable, demoFile)
	result, err := d.load(ctx, rowRange{to: n})
	if err != nil {
		return err
	}
	d.say("%s in %s: %s, each on a majority of its tablet's replicas", plural(result.written, "row"), took(result.took),
		perSecond(result.written, result.took))
	return nil
}

// rowRange is the rows [from, to) of the file, counted from 0, less those in without.
type rowRange struct {
	from, to int
	without  []int
}

func (r rowRange) len() int { return r.to - r.from - len(r.without) }

// load writes rows of the file, with progress.
func (d *demo) load(ctx context.Context, rows rowRange) (loadResult, error) {
	in, err := openInput(d.file, nil)
	if err != nil {
		return loadResult{}, err
	}
	defer in.close()
	l := &load{client: d.client, table: d.table, op: opTypes["insert"], sessions: 4}
	progress := newProgress(d.Err, func() string {
		n := l.written.Load()
		return fmt.Sprintf("    %s of %s rows, %s", thousands(n), thousands(rows.len()), perSecond(n, time.Since(l.began)))
	})
	l.rejected = func(place string, err error) { progress.println(fmt.Sprintf("    %s: %v", place, err)) }
	result := l.run(ctx, func() (rowSource, error) {
		src, err := newCSVSource(in.content, d.table.Schema(), sourceOptions{nulls: []string{"NA"}})
		return &someRows{rowSource: src, rows: rows}, err
	})
	progress.stop()
	if result.err == nil && (result.rejected > 0 || result.written != int64(rows.len())) {
		result.err = fmt.Errorf("%s of %s were written, %s rejected", thousands(result.written), plural(rows.len(), "row"),
			thousands(result.rejected))
	}
	return result, result.err
}

func (d *demo) answerMost(ctx context.Context) error {
	d.title("Ask. Columns travel as Arrow record batches; conditions are tested where the rows are.")
	return d.answer(ctx, d.expected.rows[:len(d.expected.rows)-demoHeldBack])
}

func (d *demo) killLeader(ctx context.Context) error {
	tablets, err := d.client.Tablets(ctx, d.table)
	if err != nil {
		return err
	}
	leads, err := d.leaders(ctx)
	if err != nil {
		return err
	}
	servers, err := d.cluster.Servers()
	if err != nil {
		return err
	}
	for _, s := range servers {
		if s.Role == localcluster.RoleTserver && (d.killed.Name == "" || leads[s.UUID] > leads[d.killed.UUID]) {
			d.killed = s
		}
	}
	d.orphaned = map[string]bool{}
	for _, t := range tablets {
		if l, ok := t.Leader(); ok && l.ServerID == d.killed.UUID {
			d.orphaned[t.ID] = true
		}
	}
	d.title("Kill -9 the tablet server that leads most tablets: %s, which leads %s.", d.killed.Name, plural(leads[d.killed.UUID], "tablet"))
	d.command("local kill %s --dir %s", d.killed.Name, d.flags.dir)
	return d.cluster.Kill(d.killed.Name)
}

func (d *demo) loadRest(ctx context.Context) error {
	n := len(d.expected.rows)
	d.title("Load the last %s flights while it is down. Its tablets choose new leaders among the replicas that are left.", thousands(demoHeldBack))
	first, err := d.orphanedRow(ctx, n-demoHeldBack)
	if err != nil {
		return err
	}
	began := time.Now()
	if _, err := d.load(ctx, rowRange{from: first, to: first + 1}); err != nil {
		return err
	}
	d.say("the first write to a tablet that it led waited %s for the new leader", took(time.Since(began)))
	result, err := d.load(ctx, rowRange{from: n - demoHeldBack, to: n, without: []int{first}})
	if err != nil {
		return err
	}
	d.say("the other %s took %s", plural(result.written, "row"), took(result.took))
	leads, err := d.leaders(ctx)
	if err != nil {
		return err
	}
	d.say("now %s", d.describeLeaders(leads))
	return nil
}

func (d *demo) answerAll(ctx context.Context) error {
	d.title("Ask again, with the server still dead: now for the whole month.")
	return d.answer(ctx, d.expected.rows)
}

// cleanUp stops and deletes everything; after a failure (other than Ctrl-C) the folder stays, for its logs.
func (d *demo) cleanUp(ctx context.Context, failure error) error {
	if d.client != nil {
		d.client.Close()
	}
	if d.cluster == nil {
		if d.flags.dir != "" && failure == nil {
			return nil
		}
		d.note("the servers' logs are in %s", d.flags.dir)
		return nil
	}
	if d.flags.keep {
		d.title("The cluster stays up: export NYALA_MASTERS=%s", strings.Join(d.cluster.MasterAddresses(), ","))
		d.command("local down --delete --dir %s", d.flags.dir)
		return nil
	}
	remove := failure == nil || errors.Is(failure, context.Canceled)
	if err := d.cluster.Down(context.WithoutCancel(ctx), remove); err != nil {
		return err
	}
	if !remove {
		d.note("everything is stopped; the servers' data and logs are in %s", d.flags.dir)
		return nil
	}
	if failure != nil {
		d.note("everything is stopped and deleted")
		return nil
	}
	d.title("Everything is stopped and deleted. Each answer was what the CSV file gives. It took %s.", took(time.Since(d.began)))
	return nil
}

// findDemoFile looks for the flights where the repository has them.
func findDemoFile(given string) (string, error) {
	if given != "" {
		return given, nil
	}
	places := []string{demoFile}
	if self, err := os.Executable(); err == nil {
		places = append(places, filepath.Join(filepath.Dir(self), "..", demoFile), filepath.Join(filepath.Dir(self), demoFile))
	}
	for _, p := range places {
		if _, err := os.Stat(p); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("found no %s here or beside this program: run it in the repository, or name the file with --file", demoFile)
}

// someRows passes on a range of a source's rows.
type someRows struct {
	rowSource
	rows rowRange
	at   int // rows read
}

func (s *someRows) next(row *inputRow) error {
	for {
		if s.at >= s.rows.to {
			return io.EOF
		}
		if err := s.rowSource.next(row); err != nil {
			return err
		}
		at := s.at
		s.at++
		if at >= s.rows.from && !slices.Contains(s.rows.without, at) {
			return nil
		}
	}
}
