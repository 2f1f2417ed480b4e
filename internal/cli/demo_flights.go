package cli

import (
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The demo's expected answers come from the CSV file alone, read by Go's own CSV reader: nothing of what is being shown takes
// part.

// flight is what the answers need of one row, and the row as a whole.
type flight struct {
	timeHour, carrier, number, origin, dest string
	delayed                                 bool // it has a departure delay
	delay, distance                         int
	whole                                   string // all fields, NULL for NA
}

// flights are the rows of the file, in its order.
type flights struct {
	columns []string
	rows    []flight
}

// fieldSeparator stands between the fields of flight.whole: no field holds it.
const fieldSeparator = "\x1f"

func readFlights(file string) (*flights, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	records, err := csv.NewReader(z).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(records) <= demoHeldBack {
		return nil, fmt.Errorf("%s has %s, too few for the demo", file, plural(len(records), "line"))
	}
	out := &flights{columns: records[0]}
	at := map[string]int{}
	for i, name := range records[0] {
		at[name] = i
	}
	for _, name := range []string{"time_hour", "carrier", "flight", "origin", "dest", "dep_delay", "distance"} {
		if _, ok := at[name]; !ok {
			return nil, fmt.Errorf("%s has no column %s", file, name)
		}
	}
	for i, r := range records[1:] {
		row := flight{
			timeHour: r[at["time_hour"]], carrier: r[at["carrier"]], number: r[at["flight"]], origin: r[at["origin"]], dest: r[at["dest"]],
			delayed: r[at["dep_delay"]] != "NA",
		}
		if row.delayed {
			row.delay, err = strconv.Atoi(r[at["dep_delay"]])
		}
		if err == nil {
			row.distance, err = strconv.Atoi(r[at["distance"]])
		}
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, i+2, err)
		}
		for j := range r {
			if r[j] == "NA" {
				r[j] = "NULL"
			}
		}
		row.whole = strings.Join(r, fieldSeparator)
		out.rows = append(out.rows, row)
	}
	return out, nil
}

// answers are what the demo asks.
type answers struct {
	rows      int
	byCarrier map[string]int
	longest   []flight // the ten longest departure delays
	farJFK    int      // flights from JFK over 2,000 miles
}

func answersOf(rows []flight) answers {
	a := answers{rows: len(rows), byCarrier: map[string]int{}}
	for _, r := range rows {
		a.byCarrier[r.carrier]++
		if r.origin == "JFK" && r.distance > 2000 {
			a.farJFK++
		}
	}
	a.longest = longestDelays(rows)
	return a
}

// longestDelays returns the ten flights that left latest, the longest delay first, ties in the order of the key.
func longestDelays(rows []flight) []flight {
	var delayed []flight
	for _, r := range rows {
		if r.delayed {
			delayed = append(delayed, r)
		}
	}
	slices.SortFunc(delayed, func(a, b flight) int {
		return cmp.Or(cmp.Compare(b.delay, a.delay), cmp.Compare(a.timeHour, b.timeHour), cmp.Compare(a.carrier, b.carrier),
			cmp.Compare(a.number, b.number), cmp.Compare(a.origin, b.origin))
	})
	return delayed[:min(10, len(delayed))]
}

// describe is a flight as the demo prints it.
func (f flight) describe() string {
	return fmt.Sprintf("%5d min  %s %-4s  %s to %s  %s", f.delay, f.carrier, f.number, f.origin, f.dest, f.timeHour)
}

// digest stands for rows in their order.
func digest(rows []string) string {
	h := sha256.New()
	for _, r := range rows {
		fmt.Fprintf(h, "%d:%s", len(r), r)
	}
	return fmt.Sprintf("%d rows, sha256 %x", len(rows), h.Sum(nil)[:8])
}
