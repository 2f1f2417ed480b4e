package hybridtime

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Days and years, where a duration is long: a year is 365.25 days.
const (
	Day  = 24 * time.Hour
	Year = 365*Day + 6*time.Hour
)

// ParseDuration reads a duration as Go writes them, with d and y beside: "1h30m", "-3600s", "40y", "1y2d3h". A bare 0 needs
// no unit.
func ParseDuration(text string) (time.Duration, error) {
	rest, negative := text, false
	if rest != "" && (rest[0] == '-' || rest[0] == '+') {
		negative, rest = rest[0] == '-', rest[1:]
	}
	bad := fmt.Errorf("duration %q: want a number with a unit, such as 1h30m, 2d or 40y", text)
	var sum float64
	var plain strings.Builder // the parts that Go knows
	for rest != "" {
		n := strings.IndexFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if n <= 0 {
			if n < 0 && plain.Len() == 0 && sum == 0 && strings.Trim(rest, "0") == "" {
				return 0, nil
			}
			return 0, bad
		}
		end := n + strings.IndexFunc(rest[n:], func(r rune) bool { return r >= '0' && r <= '9' || r == '.' })
		if end < n {
			end = len(rest)
		}
		number, unit := rest[:n], rest[n:end]
		long := map[string]time.Duration{"d": Day, "y": Year}[unit]
		if long == 0 {
			plain.WriteString(rest[:end])
		} else if f, err := strconv.ParseFloat(number, 64); err == nil {
			sum += f * float64(long)
		} else {
			return 0, bad
		}
		rest = rest[end:]
	}
	if text == "" || plain.Len() == 0 && sum == 0 && !strings.ContainsAny(text, "dy") {
		return 0, bad
	}
	var d time.Duration
	if plain.Len() > 0 {
		var err error
		if d, err = time.ParseDuration(plain.String()); err != nil {
			return 0, bad
		}
	}
	if sum > math.MaxInt64-float64(d)-1024 {
		return 0, fmt.Errorf("duration %q: longer than 292 years", text)
	}
	if d += time.Duration(sum); negative {
		d = -d
	}
	return d, nil
}
