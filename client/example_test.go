package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/nyaladb/nyala/client"
)

// Connect, create a table, write a row, read it back.
func Example() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{Masters: []string{"localhost:7051"}})
	if err != nil {
		panic(err)
	}
	defer c.Close()

	table, err := c.CreateTable(ctx, client.CreateTableOptions{
		Name: "events",
		Columns: []client.Column{
			{Name: "id", Type: client.Int64},
			{Name: "at", Type: client.UnixtimeMicros},
			{Name: "what", Type: client.String, Nullable: true},
		},
		PrimaryKey: []string{"id"},
		Hash:       []client.HashPartition{{Columns: []string{"id"}, Buckets: 4}},
		Replicas:   3,
	})
	if err != nil {
		panic(err)
	}

	s := c.NewSession(client.SessionOptions{})
	op := table.NewInsert()
	if err := errors.Join(op.Set("id", 1), op.Set("at", time.Now()), op.Set("what", "hello")); err != nil {
		panic(err)
	}
	if err := s.Apply(ctx, op); err != nil { // written, on a majority of the replicas, when it returns
		panic(err)
	}

	n, err := table.Count(ctx, client.ScanOptions{})
	if err != nil {
		panic(err)
	}
	fmt.Println(n, "row")
}

// Load many rows: one Operation, used again and again, and a Flush whenever the session's buffer is full.
func ExampleSession_Flush() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	table, err := c.OpenTable(ctx, "events")
	if err != nil {
		panic(err)
	}
	s := c.NewSession(client.SessionOptions{Flush: client.ManualFlush})
	flush := func() {
		rows, err := s.Flush(ctx)
		for _, r := range rows {
			fmt.Printf("line %d: %v\n", r.Op.Tag, r.Err) // this row alone wasn't written
		}
		if err != nil {
			panic(err) // the cluster couldn't be reached
		}
	}
	op := table.NewUpsert()
	for line := range 1_000_000 {
		op.Reset()
		op.Tag = uint64(line)
		err := errors.Join(
			op.SetValue(0, client.IntValue(int64(line))),
			op.SetValue(1, client.IntValue(time.Now().UnixMicro())),
		)
		if err != nil {
			panic(err)
		}
		err = s.Apply(ctx, op)
		if errors.Is(err, client.ErrBufferFull) {
			flush()
			err = s.Apply(ctx, op)
		}
		if err != nil {
			panic(err)
		}
	}
	flush()
}

// Scan some columns of the rows that match, batch by batch, as Arrow records.
func ExampleTable_Scan() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	table, err := c.OpenTable(ctx, "flights")
	if err != nil {
		panic(err)
	}
	far, err := table.Predicate("distance", client.Greater, 2000)
	if err != nil {
		panic(err)
	}
	sc, err := table.Scan(ctx, client.ScanOptions{
		Columns:    []string{"carrier", "distance"},
		Predicates: []client.Predicate{far},
	})
	if err != nil {
		panic(err)
	}
	defer sc.Close()
	for {
		b, err := sc.Next(ctx)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(err)
		}
		carriers := b.Record.Column(0).(*array.String)
		distances := b.Record.Column(1).(*array.Int32)
		for i := range b.Rows {
			fmt.Println(carriers.Value(i), distances.Value(i))
		}
		b.Release()
	}
}

// Read a table as it was right after a session's writes, from whichever replica is close.
func ExampleSession_LastTimestamp() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	table, err := c.OpenTable(ctx, "events")
	if err != nil {
		panic(err)
	}
	s := c.NewSession(client.SessionOptions{})
	op := table.NewDelete()
	if err := op.Set("id", 1); err != nil {
		panic(err)
	}
	if err := s.Apply(ctx, op); err != nil && client.CodeOf(err) != client.CodeNotFound {
		panic(err)
	}
	n, err := table.Count(ctx, client.ScanOptions{
		ReadMode:          client.ReadAtSnapshot,
		SnapshotTimestamp: s.LastTimestamp() + 1,
		Replica:           client.ClosestReplica,
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(n, "rows")
}

// What became of a write whose answer never came is not known; to an upsert that may be sent again it doesn't matter.
func ExampleOutcomeUnknown() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	table, err := c.OpenTable(ctx, "events")
	if err != nil {
		panic(err)
	}
	op := table.NewUpsert()
	if err := errors.Join(op.Set("id", 1), op.Set("at", time.Now())); err != nil {
		panic(err)
	}
	s := c.NewSession(client.SessionOptions{})
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := s.Apply(attempt, op)
		cancel()
		if !client.OutcomeUnknown(err) {
			fmt.Println("written:", err == nil)
			return
		}
	}
}

// Divide a scan among programs: each part can be read on another machine.
func ExampleTable_ScanTokens() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{Masters: []string{"localhost:7051"}})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	table, err := c.OpenTable(ctx, "events")
	if err != nil {
		panic(err)
	}
	tokens, err := table.ScanTokens(ctx, client.ScanOptions{Columns: []string{"id"}, ReadMode: client.ReadAtSnapshot})
	if err != nil {
		panic(err)
	}
	for _, token := range tokens {
		part, err := token.Serialize()
		if err != nil {
			panic(err)
		}
		// Elsewhere, with a client of its own:
		rows, err := c.ScanSerialized(ctx, part)
		if err != nil {
			panic(err)
		}
		for {
			batch, err := rows.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				panic(err)
			}
			fmt.Println(token.TabletID(), batch.Rows)
			batch.Release()
		}
	}
}

// Write many rows without waiting for each: they are sent in the background, and what went wrong is told at the end.
func ExampleSession_backgroundFlush() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{Masters: []string{"localhost:7051"}})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	table, err := c.OpenTable(ctx, "events")
	if err != nil {
		panic(err)
	}
	s := c.NewSession(client.SessionOptions{Flush: client.BackgroundFlush})
	for id := range 1_000_000 {
		op := table.NewUpsert()
		if err := op.Set("id", id); err != nil {
			panic(err)
		}
		if err := op.Set("at", time.Now()); err != nil {
			panic(err)
		}
		if err := s.Apply(ctx, op); err != nil { // waits while too much is under way
			panic(err)
		}
	}
	rows, err := s.Close(ctx)
	if err != nil {
		panic(err)
	}
	for _, row := range rows {
		fmt.Println(row.Error())
	}
}

// Change a table while programs write to it: the steps are taken all or none, and every tablet has them when Apply returns.
func ExampleTable_Alter() {
	ctx := context.Background()
	c, err := client.Connect(ctx, client.Options{Masters: []string{"localhost:7051"}})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	table, err := c.OpenTable(ctx, "events")
	if err != nil {
		panic(err)
	}
	altered, err := table.Alter().
		AddColumn(client.Column{Name: "severity", Type: client.Int8}, 3). // which rows that are there read as, too
		RenameColumn("what", "message").
		Apply(ctx)
	if err != nil {
		panic(err) // then nothing was changed, and the message says which step couldn't be
	}

	// Table still is as it was opened: what it writes gets the default. The one that Apply returned knows the new columns.
	op := altered.NewInsert()
	if err := errors.Join(op.Set("id", 2), op.Set("at", time.Now()), op.Set("message", "fire"), op.Set("severity", 9)); err != nil {
		panic(err)
	}
	if err := c.NewSession(client.SessionOptions{}).Apply(ctx, op); err != nil {
		panic(err)
	}
	severe, err := altered.Predicate("severity", client.GreaterEqual, 5)
	if err != nil {
		panic(err)
	}
	n, err := altered.Count(ctx, client.ScanOptions{Predicates: []client.Predicate{severe}})
	if err != nil {
		panic(err)
	}
	fmt.Println(n, "row")
}
