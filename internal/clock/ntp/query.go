package ntp

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/beevik/ntp"
)

// server is one NTP server and when it may be asked.
type server struct {
	address string
	next    int64         // by Source.now: not before
	gap     time.Duration // between two questions; grows where the server asks for it
	sample  *sample       // the latest; nil: none, or too old
	fault   error         // why the last question brought nothing
}

// peace is how long a server is left alone that wants nothing of us, and maxGap the longest time between two questions to one
// that wants fewer.
const (
	peace  = time.Hour
	maxGap = 1024 * time.Second
)

var errPeace = errors.New("it asks to be left alone")

// ask puts one question to a server; reading is Source.now.
func ask(address string, timeout time.Duration, reading func() int64) (*sample, *ntp.Response, error) {
	// The local clock is a monotonic one, so that a step of the wall clock amid the question spoils nothing. It has to be a
	// time that NTP can write down.
	epoch := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	r, err := ntp.QueryWithOptions(address, ntp.QueryOptions{
		Timeout:       timeout,
		GetSystemTime: func() time.Time { return epoch.Add(time.Duration(reading())) },
	})
	var timedOut net.Error
	switch {
	case errors.As(err, &timedOut) && timedOut.Timeout():
		return nil, nil, fmt.Errorf("no answer within %v", timeout)
	case err != nil:
		return nil, nil, err
	}
	if err := r.Validate(); err != nil {
		return nil, r, err
	}
	s := &sample{
		offset: epoch.UnixNano() + int64(r.ClockOffset),
		err:    r.RootDelay/2 + r.RootDispersion + r.RTT/2 + r.Precision,
		at:     reading(),
	}
	return s, r, nil
}

// asked takes the outcome of a question over.
func (s *server) asked(now int64, poll time.Duration, sample *sample, r *ntp.Response, err error) {
	s.fault = err
	if s.gap == 0 {
		s.gap = poll
	}
	if r != nil && r.IsKissOfDeath() {
		s.fault = fmt.Errorf("%w (%s)", errPeace, r.KissCode)
		if s.gap = min(2*s.gap, maxGap); r.KissCode != "RATE" {
			s.gap = peace
		}
	}
	if sample != nil {
		s.sample = sample
	}
	s.next = now + int64(s.gap)
}
