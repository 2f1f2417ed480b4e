package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
)

const (
	// demoCatchUp bounds how long the server that was killed may need to reach the leaders.
	demoCatchUp = time.Minute
	demoAsk     = 5 * time.Second
)

// orphanedRow returns the first row of the file, from the given one on, that belongs to a tablet whose leader is dead.
func (d *demo) orphanedRow(ctx context.Context, from int) (int, error) {
	tablets, err := d.client.Tablets(ctx, d.table)
	if err != nil {
		return 0, err
	}
	s, ps := d.table.Schema(), d.table.PartitionSchema()
	for i := from; i < len(d.expected.rows); i++ {
		r := d.expected.rows[i]
		values := make([]client.Value, s.NumColumns())
		for k, text := range []string{r.timeHour, r.carrier, r.number, r.origin} {
			if values[k], err = s.Column(k).ParseText(text); err != nil {
				return 0, err
			}
		}
		key := ps.PartitionKey(s, s.CellsOf(values), nil)
		for _, t := range tablets {
			if d.orphaned[t.ID] && bytes.Compare(t.PartitionKeyStart, key) <= 0 &&
				(len(t.PartitionKeyEnd) == 0 || bytes.Compare(key, t.PartitionKeyEnd) < 0) {
				return i, nil
			}
		}
	}
	return from, nil
}

// startKilled brings the server back and waits until each of its replicas has applied all that its tablet's leader had
// committed.
func (d *demo) startKilled(ctx context.Context) error {
	d.title("Start %s again. What it acknowledged is in its log; what it missed its tablets' leaders send it.", d.killed.Name)
	d.command("local start %s --dir %s", d.killed.Name, d.flags.dir)
	began := time.Now()
	if err := d.cluster.Start(ctx, d.killed.Name); err != nil {
		return err
	}
	d.say("ready after %s", took(time.Since(began)))
	ctx, cancel := context.WithTimeout(ctx, demoCatchUp)
	defer cancel()
	progress := newProgress(d.Err, func() string { return "    waiting for " + d.killed.Name })
	defer progress.stop()
	for {
		lines, behind, err := d.catchingUp(ctx)
		if err == nil && behind == 0 {
			progress.println("    " + d.killed.Name + " has caught up")
			for _, line := range lines {
				d.say("%s", line)
			}
			d.say("every replica has the leaders' index after %s", took(time.Since(began)))
			return nil
		}
		last := strings.Join(lines, "; ")
		if err != nil {
			last = err.Error()
		}
		timer := time.NewTimer(100 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%s hasn't caught up after %s: %s: %w", d.killed.Name, took(time.Since(began)), last, ctx.Err())
		}
	}
}

// catchingUp compares the replicas of the server that was killed with their leaders, and counts those that are behind.
func (d *demo) catchingUp(ctx context.Context) (lines []string, behind int, err error) {
	byServer := map[string]map[string]*nyalav1.ReplicaStatus{}
	servers, err := d.client.ListTabletServers(ctx)
	if err != nil {
		return nil, 0, err
	}
	for _, s := range servers {
		if len(s.RPCAddresses) == 0 {
			return nil, 0, errNoAddress
		}
		replicas, err := listTablets(ctx, s.RPCAddresses[0], demoAsk)
		if err != nil {
			return nil, 0, err
		}
		byServer[s.ID] = map[string]*nyalav1.ReplicaStatus{}
		for _, r := range replicas {
			byServer[s.ID][r.GetTabletId()] = r
		}
	}
	tablets, err := d.client.Tablets(ctx, d.table)
	if err != nil {
		return nil, 0, err
	}
	for _, t := range tablets {
		var leader *nyalav1.ReplicaStatus
		for _, replicas := range byServer {
			if r := replicas[t.ID]; r.GetRole() == nyalav1.Role_ROLE_LEADER && r.GetTerm() >= leader.GetTerm() {
				leader = r
			}
		}
		mine := byServer[d.killed.UUID][t.ID]
		switch {
		case leader == nil:
			behind++
			lines = append(lines, fmt.Sprintf("tablet %s has no leader", shortID(t.ID)))
			continue
		case mine == nil || mine.GetAppliedIndex() < leader.GetCommitIndex() || mine.GetTerm() < leader.GetTerm():
			behind++
		}
		lines = append(lines, fmt.Sprintf("tablet %s: leader's index %d, here %d", shortID(t.ID), leader.GetCommitIndex(), mine.GetAppliedIndex()))
	}
	return lines, behind, nil
}

// shortID is the beginning of an id, enough to tell tablets apart on a screen.
func shortID(id string) string { return id[:min(8, len(id))] }

// compareReplicas reads every replica of the server that was killed, and nobody else's, and compares the rows with the
// leaders' and with the file's.
func (d *demo) compareReplicas(ctx context.Context) error {
	snapshot := d.client.LatestTimestamp() + 1
	d.title("Read each replica of %s itself, at a moment after the last write, and compare every row with the CSV file.", d.killed.Name)
	d.command("table scan %s --read_mode %s --snapshot_timestamp %v \\\n        --replica %s", demoTable, readAtSnapshot, snapshot, d.killed.UUID)
	tablets, err := d.client.Tablets(ctx, d.table)
	if err != nil {
		return err
	}
	left := make(map[string]int, len(d.expected.rows))
	for _, r := range d.expected.rows {
		left[r.whole]++
	}
	strange := 0
	for _, t := range tablets {
		mine, err := d.replicaRows(ctx, t.ID, d.killed.UUID, snapshot)
		if err != nil {
			return err
		}
		for _, row := range mine {
			if left[row]--; left[row] < 0 {
				strange++
			}
		}
		leader, ok := t.Leader()
		if !ok {
			return errors.New("tablet " + t.ID + " has no leader")
		}
		theirs := mine
		if leader.ServerID != d.killed.UUID {
			if theirs, err = d.replicaRows(ctx, t.ID, leader.ServerID, snapshot); err != nil {
				return err
			}
		}
		same := "the same as its leader's"
		if digest(mine) != digest(theirs) {
			d.wrong++
			same = "WRONG: its leader has " + digest(theirs) + ", here are " + digest(mine)
		}
		d.say("replica of tablet %s: %s, %s", shortID(t.ID), plural(len(mine), "row"), same)
	}
	missing := 0
	for _, n := range left {
		missing += max(0, n)
	}
	d.check(fmt.Sprintf("all %s of these replicas are", plural(len(d.expected.rows), "row")),
		fmt.Sprintf("%d missing, %d that shouldn't be there", missing, strange), "0 missing, 0 that shouldn't be there")
	return nil
}

// replicaRows returns a tablet's rows as one server has them, each in the form of flight.whole.
func (d *demo) replicaRows(ctx context.Context, tablet, server string, snapshot client.Timestamp) ([]string, error) {
	var rows []string
	var buf []byte
	err := d.scan(ctx, client.ScanOptions{
		Columns: d.expected.columns, ReadMode: client.ReadAtSnapshot, SnapshotTimestamp: snapshot, ServerID: server, TabletID: tablet,
	}, func(b *client.Batch, row int) {
		buf = buf[:0]
		for i := range d.expected.columns {
			if i > 0 {
				buf = append(buf, fieldSeparator...)
			}
			buf = b.Column(i).AppendText(buf, b.Value(i, row))
		}
		rows = append(rows, string(buf))
	})
	return rows, err
}
