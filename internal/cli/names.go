package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/hybridtime"
)

// parseNames reads a list of column names, as in `a, b, "odd, name"`: separated by commas, blanks around them dropped, a name
// in double quotes (doubled within) taken as it is.
func parseNames(s string) ([]string, error) {
	names, rest, err := scanNames(s)
	if err != nil {
		return nil, err
	}
	if rest != "" {
		return nil, fmt.Errorf("a comma is missing before %q", rest)
	}
	return names, nil
}

// scanNames reads names up to the end or a colon, which begins rest.
func scanNames(s string) (names []string, rest string, err error) {
	for {
		s = strings.TrimLeft(s, " \t\n")
		var name string
		if strings.HasPrefix(s, `"`) {
			if name, s, err = scanQuoted(s[1:]); err != nil {
				return nil, "", err
			}
			s = strings.TrimLeft(s, " \t\n")
		} else {
			end := strings.IndexAny(s, `,:"`)
			if end < 0 {
				end = len(s)
			}
			name, s = strings.TrimSpace(s[:end]), s[end:]
			if name == "" {
				return nil, "", fmt.Errorf("a name is missing before %q", s)
			}
		}
		names = append(names, name)
		if !strings.HasPrefix(s, ",") {
			return names, s, nil
		}
		s = s[1:]
	}
}

// scanQuoted reads a name whose opening quote has been read.
func scanQuoted(s string) (name, rest string, err error) {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '"')
		if i < 0 {
			return "", "", fmt.Errorf("the quote before %q is never closed", s)
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		if !strings.HasPrefix(s, `"`) {
			return b.String(), s, nil
		}
		b.WriteByte('"')
		s = s[1:]
	}
}

// parseHash reads one dimension of hash partitioning, as in "a,b:8" or, with a seed, "a,b:8:42".
func parseHash(s string) (client.HashPartition, error) {
	names, rest, err := scanNames(s)
	if err != nil {
		return client.HashPartition{}, err
	}
	parts := strings.Split(rest, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] != "" {
		return client.HashPartition{}, fmt.Errorf("want columns, a colon and the number of buckets, as in id:4 or a,b:8")
	}
	h := client.HashPartition{Columns: names}
	if h.Buckets, err = strconv.Atoi(strings.TrimSpace(parts[1])); err != nil || h.Buckets < 2 {
		return client.HashPartition{}, fmt.Errorf("%q buckets: want a number from 2 on", parts[1])
	}
	if len(parts) == 3 {
		seed, err := strconv.ParseUint(strings.TrimSpace(parts[2]), 10, 32)
		if err != nil {
			return client.HashPartition{}, fmt.Errorf("seed %q: want a number from 0 to 4294967295", parts[2])
		}
		h.Seed = uint32(seed)
	}
	return h, nil
}

// quoteName writes a column's name as parseNames reads it.
func quoteName(name string) string {
	if name != "" && !strings.ContainsAny(name, ",:\" \t\n()") {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

func quoteNames(names []string) string {
	quoted := make([]string, len(names))
	for i, n := range names {
		quoted[i] = quoteName(n)
	}
	return strings.Join(quoted, ",")
}

// parseTimestamp reads a hybrid timestamp: RFC 3339, to the microsecond, with the logical part behind a plus as wal dump
// prints it; or an integer, microseconds since 1970.
func parseTimestamp(s string) (hybridtime.Timestamp, error) {
	const want = "want a time as in 2013-01-01T10:00:00.000000Z, with +N for a logical part, or an integer of microseconds since 1970"
	if usec, err := strconv.ParseInt(s, 10, 64); err == nil {
		if usec <= 0 || hybridtime.FromMicros(usec, 0).Micros() != usec {
			return 0, fmt.Errorf("%q is out of range: %s", s, want)
		}
		return hybridtime.FromMicros(usec, 0), nil
	}
	var logical uint64
	text := s
	if i := strings.LastIndex(s, "Z+"); i >= 0 {
		var err error
		if logical, err = strconv.ParseUint(s[i+2:], 10, hybridtime.LogicalBits); err != nil {
			return 0, fmt.Errorf("%q: logical part %q is not one of 0 to %d", s, s[i+2:], 1<<hybridtime.LogicalBits-1)
		}
		text = s[:i+1]
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, fmt.Errorf("%q: %s", s, want)
	}
	if t.Nanosecond()%1000 != 0 {
		return 0, fmt.Errorf("%q: at most six digits behind the second's point", s)
	}
	if t.UnixMicro() <= 0 {
		return 0, fmt.Errorf("%q: want a time after 1970", s)
	}
	if hybridtime.FromMicros(t.UnixMicro(), 0).Micros() != t.UnixMicro() {
		return 0, fmt.Errorf("%q: want a time before %v", s, hybridtime.Max.Time().Format(time.RFC3339))
	}
	return hybridtime.FromMicros(t.UnixMicro(), uint16(logical)), nil
}

// durationFlag is a duration on the command line: 90s, 2m, or a plain number of seconds.
type durationFlag struct{ d time.Duration }

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

// String is the flag's value as Set takes it.
func (f *durationFlag) String() string { return f.d.String() }

// Type is how help names the kind of value.
func (f *durationFlag) Type() string { return "duration" }

// Set reads a value; it must be positive.
func (f *durationFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if n, nerr := strconv.ParseFloat(s, 64); nerr == nil && n < 1e9 {
		d, err = time.Duration(n*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return fmt.Errorf("want a duration as in 30s, 500ms or 2m")
	}
	f.d = d
	return nil
}

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

// String is the word chosen.
func (c *choice) String() string { return c.value }

// Type is the list of words, for help.
func (c *choice) Type() string { return strings.Join(c.words, "|") }

// Set takes one of the words, in any case.
func (c *choice) Set(s string) error {
	for _, w := range c.words {
		if strings.EqualFold(s, w) {
			c.value = w
			return nil
		}
	}
	if near := nearest(strings.ToLower(s), c.words); near != "" {
		return fmt.Errorf("did you mean %s? It takes %s", near, strings.Join(c.words, ", "))
	}
	return fmt.Errorf("it takes %s", strings.Join(c.words, ", "))
}
