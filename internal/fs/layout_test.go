package fs

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

func open(t *testing.T, cfg Config) *Layout {
	t.Helper()
	if cfg.Role == "" {
		cfg.Role = TabletServer
	}
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func reopen(t *testing.T, l *Layout, cfg Config) *Layout {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, cfg)
}

// mustFail opens folders that must be refused with a message that holds all of words.
func mustFail(t *testing.T, cfg Config, words ...string) {
	t.Helper()
	if cfg.Role == "" {
		cfg.Role = TabletServer
	}
	l, err := Open(cfg)
	if err == nil {
		_ = l.Close()
		t.Fatalf("%+v was opened; want an error with %q", cfg, words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q lacks %q", err, w)
		}
	}
}

// createStores makes the WAL and the store as a daemon would.
func createStores(t *testing.T, l *Layout) {
	t.Helper()
	if err := os.WriteFile(l.WALPath(), []byte("wal"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.StoreDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.MarkStoresCreated(); err != nil {
		t.Fatal(err)
	}
}

// TestFirstStart makes a server in folders that don't exist yet, and finds the same one again.
func TestFirstStart(t *testing.T) {
	root := t.TempDir()
	cfg := Config{WALDir: filepath.Join(root, "a", "wal"), DataDirs: []string{filepath.Join(root, "b"), filepath.Join(root, "c")}}
	l := open(t, cfg)
	if !l.Fresh() {
		t.Error("a first start isn't said to be one")
	}
	if l.StoreDir() != filepath.Join(root, "b", "store") || l.WALPath() != filepath.Join(root, "a", "wal", "wal.db") {
		t.Errorf("places: %s, %s", l.StoreDir(), l.WALPath())
	}
	id := l.ServerID()
	createStores(t, l)
	l = reopen(t, l, cfg)
	if l.Fresh() || l.ServerID() != id {
		t.Fatalf("second start: fresh %v, server %s, was %s", l.Fresh(), l.ServerID(), id)
	}
	for _, dir := range []string{cfg.WALDir, cfg.DataDirs[0], cfg.DataDirs[1]} {
		in, err := Inspect(dir)
		if err != nil || in != l.Instance() {
			t.Errorf("%s: %+v, %v", dir, in, err)
		}
	}
}

// TestDefaultDataDir shows that the WAL folder holds the store where no data folder is given, or where it is given by a link.
func TestDefaultDataDir(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Config{WALDir: dir})
	if l.StoreDir() != filepath.Join(dir, "store") {
		t.Fatal(l.StoreDir())
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	l = reopen(t, l, Config{WALDir: dir, DataDirs: []string{link}})
	if len(l.dirs) != 1 {
		t.Fatalf("folders: %v", l.dirs)
	}
	must(t, l.Close())
	mustFail(t, Config{WALDir: t.TempDir(), DataDirs: []string{dir, link}}, "given twice", link)
}

// TestMistakes is a table of what people do to folders; each is refused by name, and nothing in them changes.
func TestMistakes(t *testing.T) {
	type folders struct{ a, b Config } // two servers, made and closed
	for _, c := range []struct {
		name string
		do   func(t *testing.T, f folders) (Config, []string)
	}{
		{"master on a tserver's folder", func(t *testing.T, f folders) (Config, []string) {
			f.a.Role = Master
			return f.a, []string{f.a.WALDir, "belongs to a tserver", "this is a master"}
		}},
		{"folders of two servers mixed", func(t *testing.T, f folders) (Config, []string) {
			return Config{WALDir: f.a.WALDir, DataDirs: f.b.DataDirs}, []string{"two servers", f.a.WALDir, f.b.DataDirs[0]}
		}},
		{"WAL file gone", func(t *testing.T, f folders) (Config, []string) {
			must(t, os.Remove(WALPath(f.a.WALDir)))
			return f.a, []string{"write-ahead log", "missing", WALPath(f.a.WALDir)}
		}},
		{"WAL folder gone", func(t *testing.T, f folders) (Config, []string) {
			must(t, os.RemoveAll(f.a.WALDir))
			return f.a, []string{"write-ahead log", "missing", WALPath(f.a.WALDir)}
		}},
		{"store gone", func(t *testing.T, f folders) (Config, []string) {
			must(t, os.Remove(StorePath(f.a.DataDirs[0])))
			return f.a, []string{"row store", "missing", StorePath(f.a.DataDirs[0])}
		}},
		{"data folders in another order", func(t *testing.T, f folders) (Config, []string) {
			f.a.DataDirs = []string{f.a.DataDirs[1], f.a.DataDirs[0]}
			return f.a, []string{"row store", "missing", StorePath(f.a.DataDirs[0])}
		}},
		{"instance files gone", func(t *testing.T, f folders) (Config, []string) {
			for _, d := range append(f.a.DataDirs, f.a.WALDir) {
				must(t, os.Remove(InstancePath(d)))
			}
			return f.a, []string{WALPath(f.a.WALDir), "is there but", InstancePath(f.a.WALDir)}
		}},
		{"instance file empty", func(t *testing.T, f folders) (Config, []string) {
			must(t, os.Truncate(InstancePath(f.a.DataDirs[1]), 0))
			return f.a, []string{InstancePath(f.a.DataDirs[1]), "damaged", "empty"}
		}},
		{"copies name two clusters", func(t *testing.T, f folders) (Config, []string) {
			in, err := Inspect(f.a.DataDirs[1])
			if err != nil {
				t.Fatal(err)
			}
			in.ClusterID = clusterB
			if err := writeInstance(f.a.DataDirs[1], &in); err != nil {
				t.Fatal(err)
			}
			return f.a, []string{"two clusters", clusterA, clusterB, f.a.DataDirs[1]}
		}},
		{"a file where a folder should be", func(t *testing.T, f folders) (Config, []string) {
			return Config{WALDir: WALPath(f.a.WALDir)}, []string{"fs_wal_dir", WALPath(f.a.WALDir), "not a folder"}
		}},
		{"a file above the folder", func(t *testing.T, f folders) (Config, []string) {
			return Config{WALDir: filepath.Join(WALPath(f.a.WALDir), "x")}, []string{"fs_wal_dir", "not a folder"}
		}},
		{"no folder given", func(*testing.T, folders) (Config, []string) { return Config{}, []string{"fs_wal_dir"} }},
		{"a folder given twice", func(t *testing.T, f folders) (Config, []string) {
			return Config{WALDir: f.a.WALDir, DataDirs: []string{f.a.WALDir, f.a.WALDir + "/"}}, []string{"fs_data_dirs", "twice"}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			var f folders
			for _, s := range []struct {
				cfg  *Config
				name string
			}{{&f.a, "a"}, {&f.b, "b"}} {
				*s.cfg = Config{
					WALDir:   filepath.Join(root, s.name, "wal"),
					DataDirs: []string{filepath.Join(root, s.name, "d1"), filepath.Join(root, s.name, "d2")},
				}
				l := open(t, *s.cfg)
				createStores(t, l)
				if err := l.SetClusterID(clusterA); err != nil {
					t.Fatal(err)
				}
				must(t, l.Close())
			}
			cfg, words := c.do(t, f)
			before := snapshot(t, root)
			mustFail(t, cfg, words...)
			if after := snapshot(t, root); before != after {
				t.Errorf("the folders changed:\n%s\nwere:\n%s", after, before)
			}
		})
	}
}

// snapshot lists the files under root with their content, but for locks and folders.
func snapshot(t *testing.T, root string) string {
	var b bytes.Buffer
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == lockName {
			return err
		}
		content, err := os.ReadFile(path)
		b.WriteString(path + ": " + string(content) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestStrayFiles shows that what isn't ours is left alone and not taken for anything, and that our own leftovers go, with
// one warning each.
func TestStrayFiles(t *testing.T) {
	cfg := Config{WALDir: t.TempDir()}
	l := open(t, cfg)
	must(t, l.Close())
	strays := []string{".DS_Store", "x.tmp", "instance.bak", "README"}
	ours := []string{"instance.tmp", "wal.db.tmp"}
	for _, name := range append(strays, ours...) {
		if err := os.WriteFile(filepath.Join(cfg.WALDir, name), make([]byte, 100), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(cfg.WALDir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	open(t, cfg)
	for _, name := range append(strays, "lost+found") {
		if _, err := os.Stat(filepath.Join(cfg.WALDir, name)); err != nil {
			t.Errorf("a stray file went: %v", err)
		}
	}
	for _, name := range ours {
		if _, err := os.Stat(filepath.Join(cfg.WALDir, name)); err == nil {
			t.Errorf("%s was left", name)
		}
	}
	if n := strings.Count(logged.String(), "level=WARN"); n != len(ours) {
		t.Errorf("%d warnings:\n%s", n, &logged)
	}
}

// TestClusterID shows that the id is set once, survives, and that another is refused by name and changes nothing.
func TestClusterID(t *testing.T) {
	root := t.TempDir()
	cfg := Config{WALDir: filepath.Join(root, "wal"), DataDirs: []string{filepath.Join(root, "data")}}
	l := open(t, cfg)
	if l.ClusterID() != "" {
		t.Fatal("a new server has a cluster")
	}
	if err := l.SetClusterID("x"); status.CodeOf(err) != status.InvalidArgument {
		t.Fatalf("not an id: %v", err)
	}
	for range 2 {
		if err := l.SetClusterID(clusterA); err != nil {
			t.Fatal(err)
		}
	}
	l = reopen(t, l, cfg)
	before := snapshot(t, root)
	err := l.SetClusterID(clusterB)
	if status.CodeOf(err) != status.ClusterIDMismatch || !strings.Contains(err.Error(), clusterA) || !strings.Contains(err.Error(), clusterB) {
		t.Fatalf("another cluster: %v", err)
	}
	if l.ClusterID() != ident.ClusterID(clusterA) || snapshot(t, root) != before {
		t.Fatal("a refused id changed something")
	}
}

// TestCrashBetweenFolders stops a change after each folder it reached: the next start completes it in all.
func TestCrashBetweenFolders(t *testing.T) {
	root := t.TempDir()
	cfg := Config{WALDir: filepath.Join(root, "wal"), DataDirs: []string{filepath.Join(root, "d1"), filepath.Join(root, "d2")}}
	dirs := append([]string{cfg.WALDir}, cfg.DataDirs...)
	for reached := 1; reached <= len(dirs); reached++ {
		must(t, os.RemoveAll(root))
		l := open(t, cfg)
		createStores(t, l)
		old := l.Instance()
		old.StoresCreated = false
		changed := old
		changed.ClusterID, changed.StoresCreated = clusterA, true
		must(t, l.Close())
		for i, dir := range dirs {
			in := &old
			if i < reached {
				in = &changed
			}
			if err := writeInstance(dir, in); err != nil {
				t.Fatal(err)
			}
		}
		if l = open(t, cfg); l.Instance() != changed {
			t.Fatalf("after %d folders: %+v", reached, l.Instance())
		}
		for _, dir := range dirs {
			if in, err := Inspect(dir); err != nil || in != changed {
				t.Fatalf("after %d folders %s holds %+v: %v", reached, dir, in, err)
			}
		}
		must(t, l.Close())
	}
	// A first start that reached one folder alone.
	must(t, os.RemoveAll(root))
	l := open(t, cfg)
	in := l.Instance()
	must(t, l.Close())
	must(t, os.Remove(InstancePath(cfg.WALDir)))
	must(t, os.Remove(InstancePath(cfg.DataDirs[0])))
	if l = open(t, cfg); l.Instance() != in {
		t.Fatalf("%+v became %+v", in, l.Instance())
	}
}

// TestForgetStores shows that a WAL set aside on purpose doesn't keep the server from starting.
func TestForgetStores(t *testing.T) {
	cfg := Config{WALDir: t.TempDir()}
	l := open(t, cfg)
	createStores(t, l)
	if err := l.ForgetStores(); err != nil {
		t.Fatal(err)
	}
	must(t, os.Rename(l.WALPath(), l.WALPath()+".damaged"))
	open2 := reopen(t, l, cfg)
	if open2.Instance().StoresCreated {
		t.Fatal("the mark came back")
	}
}

// TestCreatedOnce shows that creation time is kept to the microsecond, so that copies compare equal.
func TestCreatedOnce(t *testing.T) {
	l := open(t, Config{WALDir: t.TempDir(), Role: Master})
	in, err := Inspect(l.WALDir())
	if err != nil || in.Created != l.Instance().Created || time.Since(in.Created) > time.Minute || in.Role != Master {
		t.Fatalf("%+v, %v", in, err)
	}
}
