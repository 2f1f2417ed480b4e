// Package chaos shows that what clients see stays right while real processes are killed, stopped and cut off from each other.
//
// Each test starts a cluster whose tablet servers stand behind a network that it can cut (test/netproxy), has workers write and
// read through leaders and followers, and lets faults follow one another. What the workers did is checked afterwards: single-row
// reads and writes are linearizable (porcupine), a scan at a snapshot shows for each row what the last write below the snapshot
// left, and a request takes effect once, whatever became of its answers.
//
// A history that fails is written to a file, with porcupine's picture of it beside; the path is printed. The tests are short;
// NYALA_CHAOS=10m makes each let faults follow one another for so long (make trials, make soak).
package chaos
