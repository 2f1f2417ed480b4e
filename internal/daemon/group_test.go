package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// trace notes what happens to the parts of a group, in order.
type trace struct {
	mu     sync.Mutex
	events []string
}

func (tr *trace) add(e string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.events = append(tr.events, e)
}

// part is a part that notes its start, end and stop, and whose Run returns when its context ends or fail has something.
func (tr *trace) part(name string, started chan<- string, fail <-chan error) Part {
	return Part{
		Name:  name,
		Start: func(context.Context) error { tr.add("start " + name); return nil },
		Run: func(ctx context.Context) error {
			if started != nil {
				started <- name
			}
			select {
			case <-ctx.Done():
				tr.add("end " + name)
				return ctx.Err()
			case err := <-fail:
				return err
			}
		},
		Stop: func() error { tr.add("stop " + name); return nil },
	}
}

func newGroup(parts ...Part) *Group {
	g := &Group{Logger: slog.New(slog.DiscardHandler)}
	for _, p := range parts {
		g.Add(p)
	}
	return g
}

// TestGroupOrder shows parts starting in order and each stopping after all that came after it.
func TestGroupOrder(t *testing.T) {
	var tr trace
	started := make(chan string, 2)
	g := newGroup(tr.part("wal", started, nil), Part{Name: "nothing"}, tr.part("rpc", started, nil))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		<-started
		cancel()
	}()
	require.NoError(t, g.Run(ctx))
	require.Equal(t, []string{"start wal", "start rpc", "end rpc", "stop rpc", "end wal", "stop wal"}, tr.events)
}

// TestGroupFailure shows one part's failure stopping the others, in order, with its error named.
func TestGroupFailure(t *testing.T) {
	var tr trace
	fail := make(chan error, 1)
	fail <- errors.New("no more disk")
	err := newGroup(tr.part("wal", nil, fail), tr.part("rpc", nil, nil)).Run(t.Context())
	require.EqualError(t, err, "wal: no more disk")
	require.Equal(t, "stop wal", tr.events[len(tr.events)-1])

	fail <- nil
	err = newGroup(tr.part("wal", nil, fail)).Run(t.Context())
	require.EqualError(t, err, "wal ended by itself")
}

// TestGroupStartFails shows that what was started is stopped, and what wasn't is left alone.
func TestGroupStartFails(t *testing.T) {
	var tr trace
	taken := Part{
		Name:  "web",
		Start: func(context.Context) error { return errors.New("port taken") },
		Stop:  func() error { tr.add("stop web"); return nil },
	}
	err := newGroup(tr.part("wal", nil, nil), taken, tr.part("rpc", nil, nil)).Run(t.Context())
	require.EqualError(t, err, "start web: port taken")
	require.Equal(t, []string{"start wal", "end wal", "stop wal"}, tr.events)
}

// TestGroupStopErrors shows that an error while stopping is told, and that a start cut short by the end is none.
func TestGroupStopErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	err := newGroup(
		Part{Name: "store", Stop: func() error { return errors.New("flush failed") }},
		Part{Name: "slow", Start: func(ctx context.Context) error { cancel(); <-ctx.Done(); return ctx.Err() }},
	).Run(ctx)
	require.EqualError(t, err, "store: flush failed")
}
