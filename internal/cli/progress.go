package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// How often progress is shown: a terminal's line is rewritten, anything else gets a line now and then.
const (
	progressOnTerminal = 200 * time.Millisecond
	progressElsewhere  = 5 * time.Second
)

// progress shows a line of text while something runs.
type progress struct {
	w    io.Writer
	done chan struct{}
	wg   sync.WaitGroup

	// mu guards width and orders what is written.
	mu    sync.Mutex
	width int // of the line that stands on the terminal
}

// newProgress begins to show what text returns on w, until stop.
func newProgress(w io.Writer, text func() string) *progress {
	p := &progress{w: w, done: make(chan struct{})}
	terminal := isTerminal(w)
	every := progressElsewhere
	if terminal {
		every = progressOnTerminal
	}
	p.wg.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.show(text(), terminal)
			case <-p.done:
				return
			}
		}
	})
	return p
}

func (p *progress) show(line string, terminal bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	gap := max(0, p.width-len(line))
	p.width = len(line)
	fmt.Fprintf(p.w, "\r%s%s", line, strings.Repeat(" ", gap))
}

// println writes a line that stays, above the one that changes.
func (p *progress) println(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipeLocked()
	fmt.Fprintln(p.w, line)
}

func (p *progress) wipeLocked() {
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
}

// stop wipes the line off a terminal.
func (p *progress) stop() {
	close(p.done)
	p.wg.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipeLocked()
}

// isTerminal says whether w is a terminal (or another character device, where a rewritten line harms nobody).
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
