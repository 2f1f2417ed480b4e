package consensus_test

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var rewriteScripts = flag.Bool("script.rewrite", false, "write what the scripts print into their files; review the difference")

// command is one command of a script: name, then key=value or bare words.
type command struct {
	name string
	args map[string]string
}

func (c command) has(key string) bool { _, ok := c.args[key]; return ok }

func (c command) text(key, otherwise string) string {
	if v, ok := c.args[key]; ok {
		return v
	}
	return otherwise
}

func (c command) number(t *testing.T, key string, otherwise int) int {
	v, ok := c.args[key]
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("%s %s=%s: %v", c.name, key, v, err)
	}
	return n
}

// runScripts runs each file in testdata/scripts: blocks of comment lines, a command, a line of dashes, and what the command
// is to print, up to an empty line.
func runScripts(t *testing.T, begin func() func(*testing.T, command) string) {
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			run := begin()
			var out strings.Builder
			for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				head, want, _ := strings.Cut(block+"\n", "\n----\n")
				lines := strings.Split(strings.TrimSuffix(head, "\n----"), "\n")
				words := strings.Fields(lines[len(lines)-1])
				c := command{name: words[0], args: map[string]string{}}
				for _, w := range words[1:] {
					k, v, _ := strings.Cut(w, "=")
					c.args[k] = v
				}
				got := run(t, c)
				if want = strings.TrimRight(want, "\n") + "\n"; got != want && !*rewriteScripts {
					t.Errorf("%s: %s\nwant:\n%sgot:\n%s", path, lines[len(lines)-1], want, got)
				}
				out.WriteString(strings.Join(lines, "\n") + "\n----\n" + got + "\n")
			}
			if *rewriteScripts {
				if err := os.WriteFile(path, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
