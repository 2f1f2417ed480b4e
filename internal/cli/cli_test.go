package cli

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// runCLI runs one command line against a cluster and returns what it wrote and its exit code.
func runCLI(ctx context.Context, masters string, stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	a := args
	if masters != "" {
		a = append([]string{"--masters", masters}, args...)
	}
	code = Run(ctx, a, Streams{In: stdin, Out: &out, Err: &errs})
	return out.String(), errs.String(), code
}

// splitArgs splits a line as a shell would: blanks, single and double quotes.
func splitArgs(line string) []string {
	var args []string
	var cur strings.Builder
	quote, inArg := byte(0), false
	for i := range len(line) {
		switch c := line[i]; {
		case quote != 0 && c == quote:
			quote = 0
		case quote != 0:
			cur.WriteByte(c)
		case c == '\'' || c == '"':
			quote, inArg = c, true
		case c == ' ' || c == '\n':
			if inArg {
				args = append(args, cur.String())
				cur.Reset()
				inArg = false
			}
		default:
			cur.WriteByte(c)
			inArg = true
		}
	}
	if inArg {
		args = append(args, cur.String())
	}
	return args
}

var (
	durations = regexp.MustCompile(`\d+\.\d+ s\b`)
	rates     = regexp.MustCompile(`[\d,]+ rows/s`)

	snapshots = regexp.MustCompile(`--snapshot_timestamp [^ ]*Z\S*`)

	cutTimes = regexp.MustCompile(`cut at \S+`)

	redirection = regexp.MustCompile(` < (\S+)$`)
)

// steady replaces what differs from run to run: addresses (by others of the same length), folders, times.
func (c *fakeCluster) steady(dir, s string) string {
	s = strings.ReplaceAll(s, c.master.addr, "127.0.0.1:"+strings.Repeat("0", len(c.master.addr)-len("127.0.0.1:")-1)+"M")
	for i, srv := range c.servers {
		s = strings.ReplaceAll(s, srv.addr, "127.0.0.1:"+strings.Repeat("0", len(srv.addr)-len("127.0.0.1:")-1)+fmt.Sprint(i+1))
	}
	s = strings.ReplaceAll(s, dir+string(filepath.Separator), "")
	s = snapshots.ReplaceAllString(s, "--snapshot_timestamp #")
	s = cutTimes.ReplaceAllString(s, "cut at #")
	return rates.ReplaceAllString(durations.ReplaceAllString(s, "#.## s"), "# rows/s")
}

var update = flag.Bool("update", false, "write what the commands print now into the transcripts")

// TestGolden replays the transcripts of testdata, each on a new cluster of three tablet servers, and compares what comes out
// with what stands there (go test -update writes it). The lines of a transcript:
//
//	# …                a comment
//	$ nyala … [< NAME] a command line; below it its standard output, what it wrote to standard error (each line after "| "),
//	                   and its exit code unless that is 0
//	$ file NAME        a file, whose lines follow, each after "> "
//	$ kill N           tablet server N dies
//	$ plant FOLDER     makes the folder of a stopped server whose log has all kinds of faults
//	$ fence N          tablet server N's clock is fenced
//	$ differ N M       tablet servers N and M see each other's clocks a minute apart
//	$ lose N TABLET    tablet server N no longer has its replica of a tablet
func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			abs, err := filepath.Abs(path)
			require.NoError(t, err)
			s := &script{c: newFakeCluster(t, 3), dir: t.TempDir()}
			s.c.servers[0].log = sampleLog()
			t.Chdir(s.dir)
			got := s.replay(t, string(b))
			if *update {
				require.NoError(t, os.WriteFile(abs, []byte(got), 0o644))
				return
			}
			want := strings.Split(string(b), "\n")
			for i, line := range strings.Split(got, "\n") {
				require.Less(t, i, len(want), "more lines than in the transcript: %s", line)
				require.Equal(t, want[i], line, "%s, line %d", path, i+1)
			}
			require.Equal(t, string(b), got)
		})
	}
}

// script replays a transcript.
type script struct {
	c   *fakeCluster
	dir string
}

// replay returns the transcript with what the commands print now.
func (s *script) replay(t *testing.T, transcript string) string {
	var out strings.Builder
	blank := false // the last line written
	lines := strings.Split(strings.TrimSuffix(transcript, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "$ ") {
			continue // an answer, which is made anew
		}
		if i > 0 && lines[i-1] == "" && !blank {
			out.WriteByte('\n')
		}
		out.WriteString(line + "\n")
		blank = false
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			var content []string
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], ">") {
				i++
				out.WriteString(lines[i] + "\n")
				content = append(content, strings.TrimPrefix(strings.TrimPrefix(lines[i], ">"), " "))
			}
			answer := s.run(t, command, content)
			out.WriteString(answer)
			blank = strings.HasSuffix(answer, "\n\n")
		}
	}
	return out.String()
}

// run does one command of a transcript and returns its answer.
func (s *script) run(t *testing.T, command string, content []string) string {
	input := ""
	if m := redirection.FindStringSubmatch(command); m != nil {
		command, input = strings.TrimSuffix(command, m[0]), m[1]
	}
	args := splitArgs(strings.ReplaceAll(command, "$SERVER1", s.c.servers[0].addr))
	switch args[0] {
	case "file":
		text := ""
		for _, l := range content {
			text += l + "\n"
		}
		require.NoError(t, os.WriteFile(args[1], []byte(text), 0o644))
		return ""
	case "kill":
		n, err := strconv.Atoi(args[1])
		require.NoError(t, err)
		s.c.kill(s.c.servers[n-1])
		return ""
	case "fence", "differ":
		var servers []*fakeServer
		for _, arg := range args[1:] {
			n, err := strconv.Atoi(arg)
			require.NoError(t, err)
			servers = append(servers, s.c.servers[n-1])
		}
		if args[0] == "fence" {
			s.c.fence(servers[0])
		} else {
			s.c.differ(servers[0], servers[1])
		}
		return ""
	case "plant":
		plantFolder(t, args[1])
		return ""
	case "lose":
		n, err := strconv.Atoi(args[1])
		require.NoError(t, err)
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		s.c.strip[[2]string{s.c.servers[n-1].id, args[2]}] = true
		return ""
	case "nyala":
		var stdin io.Reader = strings.NewReader("")
		if input != "" {
			b, err := os.ReadFile(input)
			require.NoError(t, err)
			stdin = bytes.NewReader(b)
		}
		out, errs, code := runCLI(t.Context(), s.c.master.addr, stdin, args[1:]...)
		var b strings.Builder
		b.WriteString(out)
		for l := range strings.SplitSeq(strings.TrimSuffix(errs, "\n"), "\n") {
			if errs != "" {
				b.WriteString(strings.TrimRight("| "+l, " ") + "\n")
			}
		}
		if code != 0 {
			fmt.Fprintf(&b, "exit code %d\n", code)
		}
		return s.c.steady(s.dir, b.String())
	}
	t.Fatalf("unknown command %q", command)
	return ""
}

// sampleLog is a log with each kind of entry, and one that is damaged.
func sampleLog() []*nyalav1.WALEntry {
	ts := uint64(1357034400000000) << 12
	tablet := fakeID("1a", 1)
	return []*nyalav1.WALEntry{
		{TabletId: tablet, OpId: &nyalav1.OpId{Term: 1, Index: 1}, Kind: "none", Bytes: 0, CrcOk: true},
		{TabletId: tablet, OpId: &nyalav1.OpId{Term: 1, Index: 2}, Kind: "noop", Timestamp: ts, Bytes: 9, CrcOk: true},
		{TabletId: tablet, OpId: &nyalav1.OpId{Term: 1, Index: 3}, Kind: "write", Timestamp: ts + 4095, Bytes: 12345, CrcOk: true, Value: "INSERT (id=1, name=\"a\nb\")"},
		{TabletId: fakeID("1a", 2), OpId: &nyalav1.OpId{Term: 12, Index: 1000000}, Kind: "write", Timestamp: ts + 1, Bytes: 77, CrcOk: false},
	}
}
