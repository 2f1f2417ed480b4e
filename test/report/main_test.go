package main

import (
	"strings"
	"testing"
)

func run(t *testing.T, in string) (string, bool) {
	t.Helper()
	var out strings.Builder
	r := &report{out: &out, output: map[string][]string{}}
	if err := r.read(strings.NewReader(in)); err != nil {
		t.Fatal(err)
	}
	ok := r.finish()
	return out.String(), ok
}

// TestFailureIsShown shows that a failed test fails the run and that its output is printed, a passed one's isn't.
func TestFailureIsShown(t *testing.T) {
	out, ok := run(t, `{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":2}
{"Action":"output","Package":"p","Test":"TestB","Output":"want 1, have 2\n"}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":1}
{"Action":"fail","Package":"p","Elapsed":3}
`)
	if ok || !strings.Contains(out, "want 1, have 2") || strings.Contains(out, "quiet") || !strings.Contains(out, "1 passed, 2 failed") {
		t.Fatalf("ok=%v\n%s", ok, out)
	}
}

// TestSkipsAreNamed shows that a skipped test stands in the report with its reason.
func TestSkipsAreNamed(t *testing.T) {
	out, ok := run(t, `{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: needs root\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p"}
`)
	if !ok || !strings.Contains(out, "skipped: p.TestA: a_test.go:3: needs root") || !strings.Contains(out, "1 passed, 0 failed, 1 skipped") {
		t.Fatalf("ok=%v\n%s", ok, out)
	}
}

// TestNothingRan shows that a run without a test, or one that doesn't build, isn't taken for a good one.
func TestNothingRan(t *testing.T) {
	if out, ok := run(t, `{"Action":"skip","Package":"p"}`+"\n"); ok {
		t.Fatal(out)
	}
	if out, ok := run(t, `{"Action":"pass","Package":"p","Test":"TestB"}
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: syntax error\n"}
{"ImportPath":"q","Action":"build-fail"}
`); ok || !strings.Contains(out, "syntax error") {
		t.Fatal(out)
	}
}
