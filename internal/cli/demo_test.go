package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDemoExpectations shows that the answers computed from the CSV file are those that are known of it.
func TestDemoExpectations(t *testing.T) {
	f, err := readFlights("../../" + demoFile)
	require.NoError(t, err)
	a := answersOf(f.rows)
	require.Equal(t, 27004, a.rows)
	require.Equal(t, 2493, a.farJFK)
	require.Len(t, a.longest, 10)
	require.Equal(t, 1301, a.longest[0].delay)
	require.Equal(t, 4637, a.byCarrier["UA"])
	sum := 0
	for _, n := range a.byCarrier {
		sum += n
	}
	require.Equal(t, a.rows, sum)
	_, err = createOptions(demoTable, demoColumns, demoKey, []string{demoHash}, 3)
	require.NoError(t, err)
}

// countingSource gives n rows.
type countingSource struct {
	rowSource
	n, at int
}

func (s *countingSource) next(row *inputRow) error {
	row.line = uint64(s.at)
	s.at++
	return nil
}

// TestRowRange shows which rows of a source a range passes on.
func TestRowRange(t *testing.T) {
	for _, c := range []struct {
		rows rowRange
		want []uint64
	}{
		{rowRange{to: 3}, []uint64{0, 1, 2}},
		{rowRange{from: 2, to: 4}, []uint64{2, 3}},
		{rowRange{from: 2, to: 5, without: []int{2}}, []uint64{3, 4}},
		{rowRange{from: 2, to: 5, without: []int{4}}, []uint64{2, 3}},
	} {
		s := &someRows{rowSource: &countingSource{n: 10}, rows: c.rows}
		var got []uint64
		row := newInputRow(1)
		for s.next(row) == nil {
			got = append(got, row.line)
		}
		require.Equal(t, c.want, got)
		require.Equal(t, len(got), c.rows.len())
	}
}
