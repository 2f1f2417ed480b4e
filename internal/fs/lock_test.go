package fs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childEnv makes the test binary open a folder and hold it until its standard input ends.
const childEnv = "NYALA_FS_TEST_HOLD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if _, err := Open(Config{WALDir: dir, Role: TabletServer}); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		_, _ = bufio.NewReader(os.Stdin).ReadByte()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func testBinary(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func child(t *testing.T, exe, dir string, attr *syscall.SysProcAttr) (cmd *exec.Cmd, firstLine string) {
	t.Helper()
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	cmd.SysProcAttr = attr
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("no child process: %v", err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Skipf("the child said nothing: %v", err)
	}
	return cmd, strings.TrimSpace(line)
}

// TestSecondProcess shows that a folder in use is refused in under a second, naming it and its holder, and is free as soon
// as the holder was killed.
func TestSecondProcess(t *testing.T) {
	dir := t.TempDir()
	holder, said := child(t, testBinary(t), dir, nil)
	if said != "held" {
		t.Fatal(said)
	}
	pid, held, err := Holder(dir)
	if err != nil || !held || pid != holder.Process.Pid {
		t.Fatalf("holder: %d, %v, %v; want %d", pid, held, err, holder.Process.Pid)
	}
	start := time.Now()
	_, err = Open(Config{WALDir: dir, Role: TabletServer})
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != holder.Process.Pid || locked.Dir != dir {
		t.Fatalf("second process: %v", err)
	}
	if took := time.Since(start); took > 5*time.Second { // half a second and a bit, on a machine that does nothing else
		t.Errorf("it took %v", took)
	}
	for _, w := range []string{dir, fmt.Sprint(holder.Process.Pid)} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q lacks %q", err, w)
		}
	}
	must(t, holder.Process.Signal(syscall.SIGKILL))
	l := open(t, Config{WALDir: dir}) // waits out the dying process
	if pid, held, err := Holder(dir); err != nil || !held || pid != os.Getpid() {
		t.Errorf("holder now: %d, %v, %v", pid, held, err)
	}
	must(t, l.Close())
	if _, held, err := Holder(dir); err != nil || held {
		t.Errorf("after Close: %v, %v", held, err)
	}
}

// TestSameProcess shows that one process can't take a folder twice either, by another folder's list included.
func TestSameProcess(t *testing.T) {
	dir := t.TempDir()
	open(t, Config{WALDir: dir})
	mustFail(t, Config{WALDir: t.TempDir(), DataDirs: []string{dir}}, dir, "in use", fmt.Sprint(os.Getpid()))
}

// TestNotWritable shows the message for a folder that belongs to somebody else. Permissions don't hold root, so the open
// is done by a child process of another user where the test runs as root.
func TestNotWritable(t *testing.T) {
	// Not t.TempDir: the other user must be able to reach it.
	root, err := os.MkdirTemp("", "nyala-fs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, os.RemoveAll(root)) })
	dir := filepath.Join(root, "d")
	if err := errors.Join(os.Chmod(root, 0o755), os.Mkdir(dir, 0o555)); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		mustFail(t, Config{WALDir: dir}, dir, "not writable")
		mustFail(t, Config{WALDir: filepath.Join(dir, "new")}, dir, "not writable")
		return
	}
	// The test binary lies in a folder that the other user can't enter either.
	exe := filepath.Join(root, "fs.test")
	b, err := os.ReadFile(testBinary(t))
	if err := errors.Join(err, os.WriteFile(exe, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, said := child(t, exe, dir, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}); !strings.Contains(said, dir) || !strings.Contains(said, "not writable for user id 65534") {
		t.Fatal(said)
	}
}
