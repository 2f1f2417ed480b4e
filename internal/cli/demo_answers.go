package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/schema"
)

// answer asks the cluster the demo's questions, prints the answers and compares them with those of the rows of the file.
func (d *demo) answer(ctx context.Context, rows []flight) error {
	want := answersOf(rows)
	began := time.Now()
	d.command("table count %s", demoTable)
	n, err := d.table.Count(ctx, client.ScanOptions{})
	if err != nil {
		return err
	}
	d.say("%s (%s)", plural(n, "row"), took(time.Since(began)))
	d.check("that number is", n, want.rows)

	if err := d.answerCarriers(ctx, want); err != nil {
		return err
	}
	if err := d.answerDelays(ctx, want); err != nil {
		return err
	}
	return d.answerFar(ctx, want)
}

func (d *demo) answerCarriers(ctx context.Context, want answers) error {
	began := time.Now()
	got := map[string]int{}
	err := d.scan(ctx, client.ScanOptions{Columns: []string{"carrier"}}, func(b *client.Batch, row int) {
		got[string(b.Value(0, row).Bytes())]++
	})
	if err != nil {
		return err
	}
	d.say("")
	d.command("table scan %s --columns carrier --format csv | sort | uniq -c", demoTable)
	d.say("rows per carrier (%s):", took(time.Since(began)))
	text := carrierText(got)
	for line := range strings.SplitSeq(text, "\n") {
		d.say("  %s", line)
	}
	d.check("each of these numbers is", text, carrierText(want.byCarrier))
	return nil
}

// carrierText lists the carriers, the largest first, six to a line.
func carrierText(n map[string]int) string {
	var names []string
	for c := range n {
		names = append(names, c)
	}
	slices.SortFunc(names, func(a, b string) int {
		if n[a] != n[b] {
			return n[b] - n[a]
		}
		return strings.Compare(a, b)
	})
	var b strings.Builder
	for i, c := range names {
		switch {
		case i == 0:
		case i%6 == 0:
			b.WriteByte('\n')
		default:
			b.WriteString("   ")
		}
		fmt.Fprintf(&b, "%s %5s", c, thousands(n[c]))
	}
	return b.String()
}

func (d *demo) answerDelays(ctx context.Context, want answers) error {
	began := time.Now()
	const condition = "dep_delay > 120"
	var got []flight
	columns := []string{"dep_delay", "time_hour", "carrier", "flight", "origin", "dest"}
	o := client.ScanOptions{Columns: columns}
	var err error
	if o.Predicates, err = schema.ParseWhere(d.table.Schema(), condition); err != nil {
		return err
	}
	err = d.scan(ctx, o, func(b *client.Batch, row int) {
		text := func(i int) string { return b.Column(i).FormatText(b.Value(i, row)) }
		got = append(got, flight{
			delayed: true, delay: int(b.Value(0, row).Int()), timeHour: text(1), carrier: text(2), number: text(3), origin: text(4), dest: text(5),
		})
	})
	if err != nil {
		return err
	}
	d.say("")
	d.command("table scan %s --columns %s \\\n        --where %q", demoTable, strings.Join(columns, ","), condition)
	d.say("the ten longest departure delays (%s):", took(time.Since(began)))
	text := delayText(longestDelays(got))
	for line := range strings.SplitSeq(text, "\n") {
		d.say("  %s", line)
	}
	d.check("this list is", text, delayText(want.longest))
	return nil
}

func delayText(list []flight) string {
	lines := make([]string, len(list))
	for i, f := range list {
		lines[i] = f.describe()
	}
	return strings.Join(lines, "\n")
}

func (d *demo) answerFar(ctx context.Context, want answers) error {
	began := time.Now()
	const condition = "distance > 2000 and origin = 'JFK'"
	var o client.ScanOptions
	var err error
	if o.Predicates, err = schema.ParseWhere(d.table.Schema(), condition); err != nil {
		return err
	}
	n, err := d.table.Count(ctx, o)
	if err != nil {
		return err
	}
	d.say("")
	d.command("table count %s --where %q", demoTable, condition)
	d.say("%s (%s)", plural(n, "flight"), took(time.Since(began)))
	d.check("that number is", n, want.farJFK)
	return nil
}

// scan hands each row of a scan to do.
func (d *demo) scan(ctx context.Context, o client.ScanOptions, do func(b *client.Batch, row int)) error {
	sc, err := d.table.Scan(ctx, o)
	if err != nil {
		return err
	}
	defer sc.Close()
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for row := range b.Rows {
			do(b, row)
		}
		b.Release()
	}
}
