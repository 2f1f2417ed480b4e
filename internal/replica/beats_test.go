package replica

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
)

// slowSender notes when beats were due, and takes its time with some of them.
type slowSender struct {
	start time.Time
	due   []time.Duration
	takes []time.Duration
}

func (s *slowSender) SendBeat(_ ident.ServerID, _ string, due time.Time, _ func() *nyalav1.Beat) {
	<-time.After(s.takes[len(s.due)])
	s.due = append(s.due, due.Sub(s.start))
}

// TestBeatsDue shows that beats are due at multiples of the interval, however late one of them was, and that those that were missed
// meanwhile aren't made up for.
func TestBeatsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		s := &slowSender{start: time.Now(), takes: []time.Duration{0, 30 * ms, 2500 * ms, 0, 0}}
		b := &beater{interval: time.Second, sender: s, others: []Server{{ID: "x"}}}
		ctx, cancel := context.WithTimeout(t.Context(), 6500*ms)
		defer cancel()
		require.NoError(t, b.run(ctx))
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 5 * time.Second, 6 * time.Second}, s.due)
	})
}
