package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// slowest is how many of the slowest tests are shown.
const slowest = 10

// event is one line of go test -json, as `go doc test2json` describes it.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
	// ImportPath and its output come where a package doesn't build.
	ImportPath string
}

type result struct {
	name    string
	elapsed float64
	reason  string
}

type report struct {
	out                     io.Writer
	output                  map[string][]string // by package and test, until it passed
	times, skipped          []result
	passed, failed, skips   int
	packages, packageFailed int
}

func main() {
	r := &report{out: os.Stdout, output: map[string][]string{}}
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(1)
	}
	if !r.finish() {
		os.Exit(1)
	}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprint(r.out, string(line))
			} else {
				r.step(&e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) step(e *event) {
	key := e.Package + "\x00" + e.Test
	name := strings.TrimPrefix(e.Package, "github.com/nyaladb/nyala/") + "." + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "build-fail":
		r.packageFailed++
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.endPackage(e, key)
			return
		}
		r.endTest(e, key, name)
	}
}

func (r *report) endTest(e *event, key, name string) {
	switch e.Action {
	case "pass":
		r.passed++
		r.times = append(r.times, result{name: name, elapsed: e.Elapsed})
	case "fail":
		r.failed++
		fmt.Fprintf(r.out, "--- FAIL: %s (%.2f s)\n%s", name, e.Elapsed, strings.Join(r.output[key], ""))
	case "skip":
		r.skips++
		r.skipped = append(r.skipped, result{name: name, reason: skipReason(r.output[key])})
	}
	delete(r.output, key)
}

func (r *report) endPackage(e *event, key string) {
	switch e.Action {
	case "pass":
		r.packages++
		fmt.Fprintf(r.out, "ok    %-60s %7.2f s\n", e.Package, e.Elapsed)
	case "fail":
		r.packageFailed++
		fmt.Fprintf(r.out, "FAIL  %-60s %7.2f s\n", e.Package, e.Elapsed)
		for k, lines := range r.output {
			if strings.HasPrefix(k, e.Package+"\x00") {
				fmt.Fprint(r.out, strings.Join(lines, ""))
			}
		}
	}
	delete(r.output, key)
}

// skipReason is the last line that the test printed before it was skipped.
func skipReason(lines []string) string {
	for _, l := range slices.Backward(lines) {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "---") && !strings.HasPrefix(l, "===") {
			return l
		}
	}
	return "no reason given"
}

func (r *report) finish() bool {
	slices.SortFunc(r.times, func(a, b result) int {
		switch {
		case a.elapsed > b.elapsed:
			return -1
		case a.elapsed < b.elapsed:
			return 1
		}
		return strings.Compare(a.name, b.name)
	})
	fmt.Fprintf(r.out, "\nslowest %d:\n", min(slowest, len(r.times)))
	for _, t := range r.times[:min(slowest, len(r.times))] {
		fmt.Fprintf(r.out, "  %7.2f s  %s\n", t.elapsed, t.name)
	}
	for _, s := range r.skipped {
		fmt.Fprintf(r.out, "skipped: %s: %s\n", s.name, s.reason)
	}
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed+r.packageFailed, r.skips)
	return r.failed == 0 && r.packageFailed == 0 && r.passed > 0
}
