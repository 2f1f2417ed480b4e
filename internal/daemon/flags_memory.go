package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nyaladb/nyala/internal/memory"
	"github.com/nyaladb/nyala/internal/replica"
)

func registerMemory(c *memory.Config, f *Flags) {
	g := f.Group("Memory")
	g.Int64(&c.HardBytes, "memory_limit_hard_bytes", fmt.Sprintf("most memory to use; above it no write is taken; 0: %d %% of what the machine or the container has; -1: no limit", memory.DefaultShare),
		AtLeast(-1), NotKudus("what Go's runtime holds counts, and no mapped files; a container's limit is heeded. The garbage collector keeps to 95 % of the soft limit, unless `GOMEMLIMIT` is set, and caches and memtables whose sizes nobody gave shrink to half of it"))
	g.Int(&c.SoftPercentage, "memory_limit_soft_percentage", "percent of memory_limit_hard_bytes above which writes begin to be refused, the more the nearer that is",
		Tagged(Advanced), Between(1, 100))
}

// memoryFlags set what a server holds in memory whatever it is asked.
var memoryFlags = []string{"block_cache_capacity_bytes", "memtable_size_bytes", "log_cache_size_limit_bytes"}

// limitMemory puts the memory limit into force. Caches and memtables may take half of the soft limit; the rest is for what
// comes and goes: where they took more, writes would be refused for good. Defaults are made smaller to fit; what an operator
// gave isn't.
func (c *Common) limitMemory(env *Environment, n *replica.NodeConfig) (*memory.Limit, error) {
	cfg := c.Memory
	cfg.Registerer = env.Registry
	l, err := memory.New(cfg)
	if err != nil || l == nil {
		return nil, err
	}
	t, w := &n.Tablet, &n.WAL
	most := max(t.MaxMemtableBytes, 4*t.MemtableBytes)
	need, room := t.CacheBytes+most+w.CacheBytes, l.Soft()/2
	if need > room {
		var given []string
		for _, f := range env.Flags.Given() {
			if slices.Contains(memoryFlags, f.Name) {
				given = append(given, "--"+f.Name)
			}
		}
		if len(given) > 0 {
			l.Close()
			return nil, fmt.Errorf("caches and memtables of up to %d MiB don't fit into half of the soft memory limit of %d MiB: lower %s, or raise --memory_limit_hard_bytes",
				need>>20, l.Soft()>>20, strings.Join(given, ", "))
		}
		share := func(bytes int64) int64 { return max(int64(float64(bytes)*float64(room)/float64(need)), 1<<20) }
		t.CacheBytes, w.CacheBytes, most = share(t.CacheBytes), share(w.CacheBytes), max(share(most), 4<<20)
		t.MemtableBytes = most / 4
	}
	t.MaxMemtableBytes = most
	told := l.SetGoLimit()
	env.Logger.Info("memory limits", "hard_bytes", l.Hard(), "soft_bytes", l.Soft(), "collector_bytes", told,
		"block_cache_bytes", t.CacheBytes, "memtable_bytes", t.MemtableBytes, "log_cache_bytes", w.CacheBytes)
	return l, nil
}
