package clock

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// azureTag is the chassis asset tag of every virtual machine on Azure, where the wall clock was seen to leap.
const azureTag = "7783-7084-3265-9085-8269-3286-77"

const chassisTagPath = "/sys/class/dmi/id/chassis_asset_tag"

// coster is a Source that knows what its readings cost.
type coster interface {
	// cheap says whether a reading of the pair makes no system call, and how that was found out.
	cheap() (yes bool, how string)
}

// decision is what --wall_clock_jump_detection comes to on this machine.
type decision struct {
	on  bool
	why string
	ask bool // it may be an Azure VM, which its metadata service can tell
}

func decideDetection(setting string, src Source) decision {
	return decide(setting, src, func() ([]byte, error) { return os.ReadFile(chassisTagPath) })
}

func decide(setting string, src Source, chassisTag func() ([]byte, error)) decision {
	switch setting {
	case DetectionEnabled:
		return decision{on: true, why: "wall_clock_jump_detection=enabled"}
	case DetectionDisabled:
		return decision{why: "wall_clock_jump_detection=disabled"}
	}
	tag, err := chassisTag()
	if err == nil && strings.TrimSpace(string(tag)) == azureTag {
		return decision{on: true, why: "auto: this is an Azure VM"}
	}
	c, ok := src.(coster)
	if !ok {
		return decision{why: "auto: what a reading costs is not known"}
	}
	cheap, how := c.cheap()
	switch {
	case cheap:
		return decision{on: true, why: "auto: reading the clock makes no system call, so the check costs nothing (" + how + ")"}
	case err != nil:
		return decision{
			ask: true,
			why: fmt.Sprintf("auto: reading the clock makes system calls (%s); whether this is an Azure VM could not be read (%v), its metadata service will be asked",
				how, err),
		}
	}
	return decision{why: "auto: reading the clock makes system calls (" + how + ") and this is no Azure VM"}
}

// cheap implements coster by timing: a pair is two readings of a clock, and where they are vDSO calls it costs less than
// one system call that reads a clock. The least of several is taken, which pauses don't touch.
func (s *System) cheap() (bool, string) {
	pair, call := time.Duration(1<<62), time.Duration(1<<62)
	for range 20 {
		const times = 8
		a := time.Now()
		for range times {
			s.Pair()
		}
		b := time.Now()
		for range times {
			s.Counters()
		}
		c := time.Now()
		pair, call = min(pair, b.Sub(a)/times), min(call, c.Sub(b)/times/2)
	}
	return pair < call, fmt.Sprintf("a pair takes %v, a system call that reads one clock %v", pair, call)
}
