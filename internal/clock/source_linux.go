package clock

import (
	"encoding/hex"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Counters implements Source.
func (s *System) Counters() Counters {
	var raw, boot unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &raw) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return Counters{}
	}
	return Counters{Raw: raw.Nano(), Boot: boot.Nano(), OK: true}
}

// Discipline implements Source. Whether the kernel counts in micro- or nanoseconds (STA_NANO) changes the unit of the
// offset and of the time that adjtimex returns; neither is used here, so a flag that flips can't move a reading. The two
// error estimates are microseconds in both modes.
func (s *System) Discipline() Discipline {
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx)
	if err != nil {
		return Discipline{}
	}
	return Discipline{
		OK:       true,
		Synced:   state != unix.TIME_ERROR && tx.Status&unix.STA_UNSYNC == 0,
		MaxError: time.Duration(tx.Maxerror) * time.Microsecond,
		EstError: time.Duration(tx.Esterror) * time.Microsecond,
		FreqPPM:  float64(tx.Freq) / 65536,
		Tick:     int64(tx.Tick), //nolint:unconvert // narrower on machines of 32 bits
		State:    state,
		Status:   tx.Status,
		TAI:      int(tx.Tai),
	}
}

// ClockSource implements Source.
func (s *System) ClockSource() string {
	b, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func readBootID() (id [16]byte) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id
	}
	d, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(b)), "-", ""))
	if err != nil || len(d) != len(id) {
		return id
	}
	return [16]byte(d)
}
