package rpc

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tcpListen is the kernel's TCP_LISTEN, the state of a listening socket.
const tcpListen = 10

// sockDiag asks for the state of a listening socket as Kudu does: over a netlink socket, by the socket's address. The
// benchmarks hold it beside our way.
type sockDiag struct {
	conn    *netlink.Conn
	request netlink.Message
}

func openSockDiag(tb testing.TB, of *unix.SockaddrInet4) *sockDiag {
	tb.Helper()
	conn, err := netlink.Dial(unix.NETLINK_INET_DIAG, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close() })
	r := make([]byte, 56) // struct inet_diag_req_v2
	r[0], r[1] = unix.AF_INET, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(r[4:], 1<<tcpListen)
	binary.BigEndian.PutUint16(r[8:], uint16(of.Port))
	copy(r[12:], of.Addr[:])
	for i := 48; i < 56; i++ { // no cookie
		r[i] = 0xff
	}
	return &sockDiag{conn: conn, request: netlink.Message{Header: netlink.Header{Type: unix.SOCK_DIAG_BY_FAMILY, Flags: netlink.Request}, Data: r}}
}

func (d *sockDiag) queue() (acceptQueue, error) {
	answers, err := d.conn.Execute(d.request)
	if err != nil {
		return acceptQueue{}, err
	}
	// struct inet_diag_msg: the queue's size and limit stand after family, state, timer, retransmits, id and expiry.
	const rqueue = 4 + 48 + 4
	if len(answers) != 1 || len(answers[0].Data) < rqueue+8 {
		return acceptQueue{}, fmt.Errorf("sock_diag: no state of a socket in %v", answers)
	}
	b := answers[0].Data[rqueue:]
	return acceptQueue{waiting: binary.NativeEndian.Uint32(b), limit: binary.NativeEndian.Uint32(b[4:])}, nil
}

// TestSockDiag shows that the kernel tells the same of a queue both ways, so that the benchmarks compare like with like.
func TestSockDiag(t *testing.T) {
	r := newAcceptorRig(t, func(c *acceptorConfig) { c.backlog = 7 })
	defer r.close()
	s := r.sockets[0]
	diag := openSockDiag(t, &unix.SockaddrInet4{Port: s.addr.Port, Addr: [4]byte(s.addr.IP.To4())})
	for waiting := range uint32(3) {
		want := acceptQueue{waiting: waiting, limit: 7}
		got, err := diag.queue()
		require.NoError(t, err)
		require.Equal(t, want, got)
		got, err = s.queue()
		require.NoError(t, err)
		require.Equal(t, want, got)
		newRawClients(t, 1).connect(t, s)
	}
}
