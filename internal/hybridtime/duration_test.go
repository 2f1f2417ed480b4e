package hybridtime

import (
	"testing"
	"time"
)

// TestParseDuration shows days and years beside Go's units, and what is refused.
func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "-0": 0, "0s": 0, "0d": 0, "901s": 901 * time.Second, "-3600s": -time.Hour, "+1h30m": 90 * time.Minute, "1.5d": 36 * time.Hour,
		"40y": 1_262_304_000 * time.Second, "1y2d3h4ms": Year + 2*Day + 3*time.Hour + 4*time.Millisecond, "-2d": -2 * Day, "1h2d": 2*Day + time.Hour,
		"292y": 292 * Year,
	} {
		if got, err := ParseDuration(text); got != want || err != nil {
			t.Errorf("%q: %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "5", "y", "4 y", "1.2.3d", "4w", "293y", "1e9y", "NaNy", "--1s", "1s-2s", "99999999999999999999h"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q: %v, want an error", text, got)
		}
	}
}

// FuzzParseDuration shows that no text makes it panic, and that what Go can read it reads alike.
func FuzzParseDuration(f *testing.F) {
	f.Add("1y2d3h")
	f.Add("-1.5h3ms")
	f.Add("0")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseDuration(text)
		if want, goErr := time.ParseDuration(text); goErr == nil && want != -1<<63 && (err != nil || got != want) {
			t.Fatalf("%q: %v, %v; Go reads %v", text, got, err, want)
		}
	})
}
