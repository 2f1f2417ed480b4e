package tablet

import (
	"context"
	"encoding/binary"
	"hash/crc32"

	"github.com/nyaladb/nyala/internal/hybridtime"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the number of rows at a snapshot and a sum over them: for each row a CRC-32C of all its columns, as
// Kudu's checksum scan has it, added up. Replicas that hold the same rows give the same sum. Every write below the snapshot
// must have been applied.
//
// It works through the whole tablet, in steps between which it looks at ctx.
func (t *Tablet) Checksum(ctx context.Context, snapshot hybridtime.Timestamp) (rows, sum uint64, err error) {
	if t.deleted.Load() {
		return 0, 0, t.errDeleted()
	}
	sc := t.Schema()
	want := make([]int, sc.NumColumns())
	for i := range want {
		want[i] = i
	}
	s := &Scanner{cur: newCursor(t, sc, snapshot, want, nil, nil, nil)}
	sources := make([]cellSource, len(want))
	for i := range want {
		sources[i] = s.source(sc, i)
	}
	var buf []byte
	for more := true; more; {
		more, err = s.cur.step(ctx, stepBudget, func() (bool, error) {
			buf = buf[:0]
			for i := range sources {
				cell, null := sources[i].cell(s.cur.keyVals)
				buf = binary.LittleEndian.AppendUint32(buf, uint32(i))
				if sc.Column(i).Nullable {
					if null {
						buf = append(buf, 0)
						continue
					}
					buf = append(buf, 1)
				}
				buf = append(buf, cell...)
			}
			rows++
			sum += uint64(crc32.Checksum(buf, castagnoli))
			return false, nil
		})
		if err != nil {
			return 0, 0, err
		}
	}
	return rows, sum, nil
}
