package netproxy

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that answers each line with itself.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return l.Addr().String()
}

// heard says whether a line comes within a moment that is long where nothing should come, and next to nothing where it must.
func heard(t *testing.T, c net.Conn, r *bufio.Reader, within time.Duration) bool {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(within)))
	_, err := r.ReadString('\n')
	return err == nil
}

// TestCut cuts each way in turn: what is sent meanwhile is held, and arrives once, in order, when the way is open again.
func TestCut(t *testing.T) {
	n := New(func() map[int]string { return nil })
	defer n.Close()
	addr, err := n.Door("server", echo(t))
	require.NoError(t, err)
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer c.Close()
	r := bufio.NewReader(c)
	say := func() {
		_, err := c.Write([]byte("word\n"))
		require.NoError(t, err)
	}
	say()
	require.True(t, heard(t, c, r, 10*time.Second))
	for _, cut := range []func(){
		func() { n.Cut(Self, "server") },
		func() { n.Cut("server", Self) },
		func() { n.Part([]string{"server"}, []string{Self, "another"}) },
	} {
		cut()
		say()
		require.False(t, heard(t, c, r, 50*time.Millisecond))
		n.Heal()
		require.True(t, heard(t, c, r, 10*time.Second))
	}
	n.Cut("another", "server")
	say()
	require.True(t, heard(t, c, r, 10*time.Second), "the way between others is cut")
}

// TestDoor: a door keeps its address and leads to where it was last said to; without anyone there the connection ends.
func TestDoor(t *testing.T) {
	n := New(func() map[int]string { return nil })
	defer n.Close()
	first, err := n.Door("server", "127.0.0.1:1")
	require.NoError(t, err)
	c, err := net.Dial("tcp", first)
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	c.Close()
	second, err := n.Door("server", echo(t))
	require.NoError(t, err)
	require.Equal(t, first, second)
	c, err = net.Dial("tcp", second)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("word\n"))
	require.NoError(t, err)
	require.True(t, heard(t, c, bufio.NewReader(c), 10*time.Second))
	n.Close()
	_, err = n.Door("another", "127.0.0.1:1")
	require.Error(t, err)
}
