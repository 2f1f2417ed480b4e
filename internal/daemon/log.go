package daemon

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"gopkg.in/natefinch/lumberjack.v2"
)

// LogConfig says where log lines go.
type LogConfig struct {
	Dir        string // --log_dir; empty: standard error
	Level      string // --log_level: debug, info, warn or error; empty: info
	MaxSizeMiB int    // --max_log_size
	MaxFiles   int    // --max_log_files, the one being written counted; 0: all are kept
}

// DefaultLogConfig returns the defaults.
func DefaultLogConfig() LogConfig { return LogConfig{Level: "info", MaxSizeMiB: 256, MaxFiles: 10} }

// Register declares the flags of c in a group of their own.
func (c *LogConfig) Register(f *Flags) {
	g := f.Group("Logs")
	g.String(&c.Dir, "log_dir", "folder for log files, made if it isn't there; empty: standard error")
	g.String(&c.Level, "log_level", "the least that is logged", OneOf("debug", "info", "warn", "error"))
	g.Int(&c.MaxSizeMiB, "max_log_size", "size in MiB at which a new log file is begun", Between(1, 1<<20),
		NotKudus("256 MiB, not 1,800: ten files then fit on any disk, and one opens in an editor"))
	g.Int(&c.MaxFiles, "max_log_files", "log files to keep, the one being written among them; 0: all",
		Checked("0, or 2 or more", func(text string) error {
			if text == "1" || strings.HasPrefix(text, "-") {
				return errors.New("out of range: want 0, or 2 or more")
			}
			return nil
		}))
}

// Log is an open log.
type Log struct {
	Logger *slog.Logger
	Level  *slog.LevelVar
	Path   string // of the file being written; empty: standard error
	file   io.Closer
}

// OpenLog opens the log of a program: text lines of key=value. A folder that can't be written to is found out here.
func OpenLog(program string, c LogConfig, stderr io.Writer) (*Log, error) {
	l := &Log{Level: new(slog.LevelVar)}
	if c.Level != "" {
		if err := l.Level.UnmarshalText([]byte(c.Level)); err != nil {
			return nil, fmt.Errorf("--log_level: %w", err)
		}
	}
	out := stderr
	if c.Dir != "" {
		if err := os.MkdirAll(c.Dir, 0o755); err != nil {
			return nil, fmt.Errorf("--log_dir: %w", err)
		}
		l.Path = filepath.Join(c.Dir, program+".log")
		// Lumberjack opens at the first line, too late to say that it can't; and it keeps the mode of a file that exists.
		f, err := os.OpenFile(l.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
		if err != nil {
			return nil, fmt.Errorf("--log_dir: can't write there: %w", err)
		}
		if err := f.Close(); err != nil {
			return nil, fmt.Errorf("--log_dir: %w", err)
		}
		// Lumberjack counts only files that it has turned away from.
		lj := &lumberjack.Logger{Filename: l.Path, MaxSize: c.MaxSizeMiB, MaxBackups: max(c.MaxFiles-1, 0)}
		out, l.file = lj, lj
	}
	l.Logger = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: l.Level}))
	return l, nil
}

// Close closes the file, if there is one. The next line would open it again.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
