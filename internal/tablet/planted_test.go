//go:build planted

package tablet

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

var onlyMistake = flag.String("mistake", "", "look for this planted mistake alone")

// mistake is an expression of the sources put in another's place. In code « and » stand around it, with as much about it as makes
// it the only one of its kind in the file.
type mistake struct {
	name, file, code, wrong string
}

// mostChecks is how many random cases a mistake may take to be found. Most take a few and none has taken as many as TestRandom
// makes in one run; the rest is there so that no mistake is missed by chance.
const mostChecks = 1000

// TestPlantedMistakes shows that TestRandom finds mistakes: each of those in the table, and in how many random cases. All are built
// into one test binary of its own, of which the sources in the work tree know nothing; each run of it makes one.
func TestPlantedMistakes(t *testing.T) {
	binary := buildMistakes(t)
	run := func(n, checks int) (string, error) {
		cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestRandom$", "-test.timeout=5m", "-rapid.shrinktime=0s", "-rapid.nofailfile",
			"-rapid.seed=1", fmt.Sprintf("-rapid.checks=%d", checks))
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", mistakeEnv, n))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := run(0, 20); err != nil {
		t.Fatalf("it fails without a mistake: %v\n%s", err, out)
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, m := range mistakes {
		if *onlyMistake != "" && m.name != *onlyMistake {
			continue
		}
		g.Go(func() error {
			out, err := run(i+1, mostChecks)
			switch {
			case err == nil:
				t.Errorf("%s: not found", m.name)
			case !strings.Contains(out, "--- FAIL: TestRandom") || strings.Contains(out, "test timed out"):
				t.Errorf("%s: neither found nor missed: %v\n%s", m.name, err, out)
			default:
				t.Logf("%-50s %s", m.name, symptom(out))
			}
			return nil
		})
	}
	_ = g.Wait()
}

// symptom is the line of a run's output that says what failed and after how many checks.
func symptom(out string) string {
	for line := range strings.Lines(out) {
		if i := strings.Index(line, "[rapid] "); i >= 0 {
			return fmt.Sprintf("%.150s", strings.TrimSpace(line[i:]))
		}
	}
	return fmt.Sprintf("%.150q", out)
}

const mistakeEnv = "NYALA_PLANTED_MISTAKE"

// chooser is added to each package with mistakes: it evaluates both expressions and takes one.
const chooser = `package %s

import (
	"os"
	"strconv"
)

var plantedMistake, _ = strconv.Atoi(os.Getenv(%q))

func planted[T any](n int, right, wrong T) T {
	if n == plantedMistake {
		return wrong
	}
	return right
}
`

// buildMistakes builds the package's test binary with all mistakes in it.
func buildMistakes(t *testing.T) string {
	dir := t.TempDir()
	files := map[string][]int{} // the mistakes in each, from 1 on
	for i, m := range mistakes {
		files[m.file] = append(files[m.file], i+1)
	}
	replace := map[string]string{}
	put := func(path, text string) {
		path, err := filepath.Abs(path)
		require.NoError(t, err)
		if replace[path] == "" {
			replace[path] = filepath.Join(dir, fmt.Sprintf("%d.go", len(replace)))
		}
		require.NoError(t, os.WriteFile(replace[path], []byte(text), 0o600))
	}
	for file, numbers := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		put(file, plantAll(t, string(text), numbers))
		folder, err := filepath.Abs(filepath.Dir(file))
		require.NoError(t, err)
		put(filepath.Join(folder, "planted_chooser.go"), fmt.Sprintf(chooser, filepath.Base(folder), mistakeEnv))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600))
	binary := filepath.Join(dir, "tablet.test")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// plantAll puts mistakes into a file's text. Those in one and the same expression stand one around the other.
func plantAll(t *testing.T, text string, numbers []int) string {
	insert := map[int]string{}
	for _, n := range numbers {
		m := &mistakes[n-1]
		before, rest, _ := strings.Cut(m.code, "«")
		right, after, ok := strings.Cut(rest, "»")
		require.True(t, ok && strings.Count(text, before+right+after) == 1, "%s: %q must be in %s, once", m.name, m.code, m.file)
		from := strings.Index(text, before+right+after) + len(before)
		insert[from] = fmt.Sprintf("planted(%d, ", n) + insert[from]
		insert[from+len(right)] += fmt.Sprintf(", %s)", m.wrong)
	}
	for _, at := range slices.Backward(slices.Sorted(maps.Keys(insert))) {
		text = text[:at] + insert[at] + text[at:]
	}
	return text
}
