package schema

import "testing"

// TestAllocations shows that the ways that every row takes allocate nothing once their buffers have grown: decoding
// operations, encoding keys, hashing, matching.
func TestAllocations(t *testing.T) {
	b := newBench(t)
	d := NewOpsDecoder(b.s, b.rows, b.indirect)
	key := make([]byte, 0, 256)
	cells := func(i int) []byte { return b.cells[i] }
	for name, f := range map[string]func(){
		"decode and key": func() {
			d.Reset(b.s, b.rows, b.indirect)
			for {
				op, err := d.Next()
				if err != nil {
					t.Fatal(err)
				}
				if op == nil {
					return
				}
				key = b.s.KeyOfOp(key[:0], op)
				key = b.ps.PartitionKey(b.s, op.Cell, key[:0])
			}
		},
		"encode key":    func() { key = b.s.EncodeKey(key[:0], cells) },
		"partition key": func() { key = b.ps.PartitionKey(b.s, cells, key[:0]) },
		"encode": func() {
			b.encoder.Reset()
			for range 10 {
				if err := b.encoder.Append(Upsert, b.row, nil); err != nil {
					t.Fatal(err)
				}
			}
		},
		"match": func() {
			for _, p := range b.preds {
				p.Matches(b.cells[p.Column()], false)
			}
		},
		"find partition": func() { FindPartition(b.parts, key) },
	} {
		f()
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
