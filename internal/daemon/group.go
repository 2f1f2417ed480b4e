package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
)

// Part is one part of a daemon. Each of its functions may be nil.
type Part struct {
	Name string
	// Start prepares the part and returns: bind a port, open a store. Parts after this one start when it returned nil.
	Start func(ctx context.Context) error
	// Run works until its context ends. If it returns before that, the whole group stops.
	Run func(ctx context.Context) error
	// Stop gives back what Start took; called after Run returned, and only when Start had returned nil.
	Stop func() error
}

// Group runs parts: they start in the order in which they were added and stop in reverse.
type Group struct {
	Logger *slog.Logger // nil: slog.Default()
	parts  []Part
}

// Add adds a part. All must be added before Run.
func (g *Group) Add(p Part) { g.parts = append(g.parts, p) }

// running is a part that was started.
type running struct {
	Part
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run; set before done is closed
	told   bool  // err was reported
}

// Run starts all parts and returns when ctx has ended or a part has failed, and all parts have stopped. A stop that was
// asked for gives nil; else the error is that of the part that failed first, joined with what else went wrong.
func (g *Group) Run(ctx context.Context) error {
	log := g.Logger
	if log == nil {
		log = slog.Default()
	}
	var started []*running
	ended := make(chan *running, len(g.parts)) // parts whose Run returned
	var errs []error
	for _, p := range g.parts {
		if ctx.Err() != nil || len(ended) > 0 {
			break
		}
		if p.Start != nil {
			if err := p.Start(ctx); err != nil {
				if ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
					errs = append(errs, fmt.Errorf("start %s: %w", p.Name, err))
				}
				break
			}
		}
		started = append(started, begin(ctx, p, ended))
		log.Debug("part started", "part", p.Name)
	}
	if len(errs) == 0 && len(started) > 0 {
		select {
		case <-ctx.Done():
		case r := <-ended:
			if ctx.Err() == nil {
				errs = append(errs, endedEarly(r))
				r.told = true
			}
		}
	}
	for i := len(started) - 1; i >= 0; i-- {
		if err := started[i].stop(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", started[i].Name, err))
		}
		log.Debug("part stopped", "part", started[i].Name)
	}
	return errors.Join(errs...)
}

// begin starts a part's Run. Its context keeps the values of ctx but not its end: parts end one after the other.
func begin(ctx context.Context, p Part, ended chan<- *running) *running {
	r := &running{Part: p, done: make(chan struct{})}
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if p.Run == nil {
		close(r.done)
		return r
	}
	go func() {
		r.err = p.Run(ctx)
		close(r.done)
		ended <- r
	}()
	return r
}

func endedEarly(r *running) error {
	if r.err == nil {
		return fmt.Errorf("%s ended by itself", r.Name)
	}
	return fmt.Errorf("%s: %w", r.Name, r.err)
}

// stop ends Run, waits for it and calls Stop. That Run returns its context's end is no error.
func (r *running) stop() error {
	r.cancel()
	<-r.done
	err := r.err
	if r.told || errors.Is(err, context.Canceled) {
		err = nil
	}
	if r.Part.Stop != nil {
		err = errors.Join(err, r.Part.Stop())
	}
	return err
}
