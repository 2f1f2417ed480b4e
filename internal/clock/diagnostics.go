package clock

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// toolLimit is how long one tool may take, and toolBytes how much of what it says is kept.
const (
	toolLimit = 2 * time.Second
	toolBytes = 4096
)

// tools are asked about the machine's clock where they are installed.
var tools = [][]string{
	{"chronyc", "-n", "tracking"},
	{"chronyc", "-n", "sources"},
	{"ntpq", "-n", "-c", "timeout 1000", "-c", "readvar", "-c", "peers"},
}

// diagnose gathers what helps to see why a clock jumped: what the kernel says, and what the programs that steer it say.
func diagnose(ctx context.Context, src Source, run func(context.Context, []string) (string, bool)) string {
	var b strings.Builder
	fmt.Fprintf(&b, "clock source %q; %+v", src.ClockSource(), src.Discipline())
	for _, tool := range tools {
		if said, installed := run(ctx, tool); installed {
			fmt.Fprintf(&b, "\n%s:\n%s", strings.Join(tool, " "), said)
		}
	}
	return b.String()
}

// runTool runs a tool, if it is installed, and returns what it said.
func runTool(ctx context.Context, tool []string) (said string, installed bool) {
	path, err := exec.LookPath(tool[0])
	if err != nil {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, tool[1:]...)
	cmd.WaitDelay = time.Second // a child of the tool's may hold its output open
	out, err := cmd.CombinedOutput()
	said = strings.TrimSpace(string(out[:min(len(out), toolBytes)]))
	if err != nil {
		said += fmt.Sprintf(" (%v)", err)
	}
	return said, true
}
