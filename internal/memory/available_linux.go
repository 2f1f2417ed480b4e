package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// available is what memory the machine has, or, where that is less, what this process' control groups allow.
func available() (int64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, os.NewSyscallError("sysinfo", err)
	}
	most := int64(info.Totalram) * int64(info.Unit)
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return most, nil // no control groups
	}
	group, err := groupLimit(os.DirFS("/sys/fs/cgroup"), string(text))
	if err != nil {
		return 0, err
	}
	return min(most, group), nil
}

// groupLimit is the lowest limit of the groups that text, in the form of /proc/self/cgroup, names, and of those around them. In
// a container the names may be those of the world outside, and then the root of what is seen is the group itself.
func groupLimit(root fs.FS, text string) (int64, error) {
	limit := int64(math.MaxInt64)
	look := func(name string) error {
		b, err := fs.ReadFile(root, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("control group: %w", err)
		}
		value := strings.TrimSpace(string(b))
		if value == "max" {
			return nil
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return fmt.Errorf("control group: %s: %w", name, err)
		}
		limit = int64(min(uint64(limit), n)) // version 1 says "none" with a number that no machine has
		return nil
	}
	for line := range strings.Lines(text) {
		// number:controllers:path; version 2 has number 0 and no controllers.
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		dir, file := "", "memory.max"
		switch {
		case fields[0] == "0" && fields[1] == "":
		case strings.Contains(","+fields[1]+",", ",memory,"):
			dir, file = "memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			if err := look(strings.TrimPrefix(path.Join(dir, group, file), "/")); err != nil {
				return 0, err
			}
			if group == "/" {
				break
			}
		}
	}
	return limit, nil
}
