package netproxy

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// owner returns the name of the process at the other end of a connection, "" if there is none any more.
func (n *Net) owner(c net.Conn) string {
	inode := socketInode(c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr))
	if inode == "" {
		return ""
	}
	if holds(os.Getpid(), inode) {
		return Self
	}
	for pid, name := range n.processes() {
		if holds(pid, inode) {
			return name
		}
	}
	return ""
}

// socketInode finds the socket of a connection by its two ends, as /proc/net/tcp lists it.
func socketInode(local, remote *net.TCPAddr) string {
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	want := " " + procAddress(local) + " " + procAddress(remote) + " "
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, want) {
			continue
		}
		if fields := strings.Fields(line); len(fields) > 9 && fields[9] != "0" {
			return fields[9]
		}
	}
	return ""
}

// procAddress is an address as /proc/net/tcp writes it: the four bytes as one number of this machine, then the port.
func procAddress(a *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a.IP.To4()), a.Port)
}

// holds says whether a process has the socket open.
func holds(pid int, inode string) bool {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}
