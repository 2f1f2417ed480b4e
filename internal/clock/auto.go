package clock

import (
	"errors"
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

// decideDetection turns --wall_clock_jump_detection into on or off, and says why.
func decideDetection(setting string, src Source) (on bool, why string) {
	return decide(setting, src, func() ([]byte, error) { return os.ReadFile(chassisTagPath) })
}

func decide(setting string, src Source, chassisTag func() ([]byte, error)) (on bool, why string) {
	switch setting {
	case DetectionEnabled:
		return true, "wall_clock_jump_detection=enabled"
	case DetectionDisabled:
		return false, "wall_clock_jump_detection=disabled"
	}
	tag, err := chassisTag()
	if err == nil && strings.TrimSpace(string(tag)) == azureTag {
		return true, "auto: this is an Azure VM"
	}
	c, ok := src.(coster)
	if !ok {
		return false, "auto: what a reading costs is not known"
	}
	cheap, how := c.cheap()
	if cheap {
		return true, "auto: reading the clock makes no system call, so the check costs nothing (" + how + ")"
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		how += fmt.Sprintf("; whether this is an Azure VM could not be read: %v", err)
	}
	return false, "auto: reading the clock makes system calls (" + how + ") and this is no Azure VM"
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
