package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogToStderr shows the form of a line, and the level, which may change.
func TestLogToStderr(t *testing.T) {
	var buf bytes.Buffer
	l, err := OpenLog("nyala-master", LogConfig{Level: "warn"}, &buf)
	require.NoError(t, err)
	l.Logger.Info("unseen")
	l.Logger.Warn("seen", "tablet_id", "x")
	l.Level.Set(slog.LevelDebug)
	l.Logger.Debug("now seen")
	require.NotContains(t, buf.String(), "unseen")
	require.Contains(t, buf.String(), "level=WARN msg=seen tablet_id=x\n")
	require.Contains(t, buf.String(), "now seen")
	require.NoError(t, l.Close())
}

// TestLogRotation shows a new file at the size, no more files than the number, and appending after a restart.
func TestLogRotation(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	cfg := LogConfig{Dir: dir, MaxSizeMiB: 1, MaxFiles: 2}
	l, err := OpenLog("nyala-master", cfg, nil)
	require.NoError(t, err)
	l.Logger.Info("first life")
	require.NoError(t, l.Close())
	l, err = OpenLog("nyala-master", cfg, nil)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "nyala-master.log"), l.Path)
	text, err := os.ReadFile(l.Path)
	require.NoError(t, err)
	require.Contains(t, string(text), "first life")
	line := strings.Repeat("x", 300<<10)
	for range 4 {
		l.Logger.Info("long", "line", line)
	}
	require.NoError(t, l.Close())
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, files, 2)
	info, err := os.Stat(l.Path)
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(1<<20))
}

// TestLogDirFaults shows a folder that can't be used found at once, by name.
func TestLogDirFaults(t *testing.T) {
	file := writeFile(t, "f", "")
	_, err := OpenLog("nyala-master", LogConfig{Dir: file}, nil)
	require.ErrorContains(t, err, "--log_dir")
	require.ErrorContains(t, err, file)
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "nyala-master.log"), 0o755))
	_, err = OpenLog("nyala-master", LogConfig{Dir: dir}, nil)
	require.ErrorContains(t, err, "--log_dir: can't write there")
	_, err = OpenLog("nyala-master", LogConfig{Level: "loud"}, nil)
	require.ErrorContains(t, err, "--log_level")
}
