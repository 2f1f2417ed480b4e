package ntptest

import (
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Behaviour is what a server does when it is asked.
type Behaviour struct {
	Lie     time.Duration // added to the true time
	Silent  bool
	Kiss    string // a kiss of death: RATE, DENY
	Garbage bool
	Unsync  bool // it says that it doesn't know the time itself
}

// Server is an NTP server on loopback that says what a test wants.
type Server struct {
	conn net.PacketConn

	mu    sync.Mutex
	does  Behaviour
	asked []time.Time
}

// New starts an honest server, which ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{conn: conn}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.serve()
	}()
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	return s
}

// Address is where it listens.
func (s *Server) Address() string { return s.conn.LocalAddr().String() }

// Does changes what it does from now on, and forgets the questions so far.
func (s *Server) Does(b Behaviour) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.does, s.asked = b, nil
}

// Questions returns when it was asked since it last changed.
func (s *Server) Questions() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (s *Server) serve() {
	b := make([]byte, 512)
	for {
		n, from, err := s.conn.ReadFrom(b)
		if err != nil {
			return
		}
		if answer := s.answer(b[:n]); answer != nil {
			_, _ = s.conn.WriteTo(answer, from)
		}
	}
}

// answer makes a packet as RFC 5905 draws it.
func (s *Server) answer(q []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, time.Now())
	switch {
	case s.does.Silent || len(q) < 48:
		return nil
	case s.does.Garbage:
		return []byte("this is no packet of NTP, although it has forty-eight bytes")[:48]
	}
	a := make([]byte, 48)
	a[0] = q[0]&0x38 | 4 // the version asked for, mode server
	a[1], a[2], a[3] = 1, 6, 0xec
	if s.does.Unsync {
		a[0] |= 3 << 6
		a[1] = 16
	}
	binary.BigEndian.PutUint32(a[4:], 65)  // root delay: 1 ms
	binary.BigEndian.PutUint32(a[8:], 131) // root dispersion: 2 ms
	copy(a[12:16], "TEST")
	if s.does.Kiss != "" {
		a[1] = 0
		copy(a[12:16], s.does.Kiss)
	}
	now := time.Now().Add(s.does.Lie)
	putTime(a[16:], now.Add(-time.Second))
	copy(a[24:32], q[40:48])
	putTime(a[32:], now)
	putTime(a[40:], now)
	return a
}

// putTime writes seconds since 1900 and a binary fraction.
func putTime(b []byte, t time.Time) {
	const to1900 = 2_208_988_800
	ns := uint64(t.UnixNano())
	binary.BigEndian.PutUint32(b, uint32(ns/1e9+to1900))
	binary.BigEndian.PutUint32(b[4:], uint32(ns%1e9<<32/1e9))
}
