package house

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/nyaladb/nyala/"

// layers is the drawing of docs/architecture.md, from the top down. A package imports those of lower layers, and of its
// own layer only what sameLayer names.
var layers = [][]string{
	{"cmd/master", "cmd/tserver", "cmd/nyala"},
	{"internal/master", "internal/tserver", "internal/cli", "client"},
	{"internal/replica", "internal/daemon", "internal/localcluster"},
	{"internal/consensus", "internal/tablet"},
	{"internal/wal", "internal/rpc", "internal/clock/ntp", "internal/clock", "internal/fs", "internal/memory"},
	{"internal/schema", "internal/status", "internal/hybridtime", "internal/ident", "internal/invariant", "internal/daemon/buildinfo", "api/nyala/v1"},
}

// sameLayer lists the imports allowed within a layer, with their reasons.
var sameLayer = map[string][]string{
	"internal/daemon":    {"internal/replica"},                                                                               // it fills in a node's config from flags
	"internal/clock/ntp": {"internal/clock"},                                                                                 // one of its sources
	"internal/cli":       {"client"},                                                                                         // the command line is a client
	"internal/status":    {"api/nyala/v1"},                                                                                   // the codes are those of the wire
	"internal/schema":    {"api/nyala/v1", "internal/status", "internal/hybridtime", "internal/ident", "internal/invariant"}, // proto forms and errors
}

// notBelow lists what a package must not import although the layers would let it.
var notBelow = map[string][]string{
	"client": {
		"internal/replica", "internal/daemon", "internal/localcluster", "internal/consensus", "internal/tablet",
		"internal/wal", "internal/rpc", "internal/clock", "internal/fs",
	}, // an application links the client, not a server
	"internal/localcluster": {"internal/consensus", "internal/tablet", "internal/wal", "internal/rpc", "internal/clock"}, // it starts processes
}

type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", "./...")
	cmd.Dir = root(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func layerOf(path string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, path) })
}

// TestLayers holds the imports of every package against the drawing.
func TestLayers(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "test/") || strings.HasPrefix(path, "bench/") || strings.HasPrefix(path, "examples/") || strings.HasSuffix(path, "test") {
			continue
		}
		from := layerOf(path)
		if from < 0 {
			t.Errorf("%s stands in no layer: add it to the drawing in docs/architecture.md and to this test", path)
			continue
		}
		for _, imp := range p.Imports {
			dep, ours := strings.CutPrefix(imp, module)
			if !ours {
				continue
			}
			to := layerOf(dep)
			switch {
			case to < from:
				t.Errorf("%s imports %s, which stands above it", path, dep)
			case to == from && !slices.Contains(sameLayer[path], dep):
				t.Errorf("%s imports %s of its own layer", path, dep)
			case slices.Contains(notBelow[path], dep):
				t.Errorf("%s must not import %s", path, dep)
			}
		}
	}
}

// TestPackageDocs asks each package to say what it is for: in doc.go, or above its only file.
func TestPackageDocs(t *testing.T) {
	for _, p := range packages(t) {
		path := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(path, "api/") {
			continue
		}
		file := "doc.go"
		if len(p.GoFiles) == 1 {
			file = p.GoFiles[0]
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil || f.Doc.Text() == "" {
			t.Errorf("%s doesn't say in %s what it is for", path, file)
		}
	}
}
