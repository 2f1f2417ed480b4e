package replica

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// streamOf is a stream of the given messages.
func streamOf(msgs ...*nyalav1.FetchTabletResponse) copyReader {
	return copyReader{recv: func() (*nyalav1.FetchTabletResponse, error) {
		if len(msgs) == 0 {
			return nil, io.EOF
		}
		m := msgs[0]
		msgs = msgs[1:]
		return m, nil
	}}
}

// readCopy reads a stream to its end, each byte of a chunk as a pair.
func readCopy(r copyReader) (string, error) {
	if _, err := r.header(); err != nil {
		return "", err
	}
	all := ""
	for {
		pairs, err := r.next()
		if err != nil || len(pairs) == 0 {
			return all, err
		}
		all += string(pairs)
		r.took(pairs, len(pairs))
	}
}

// goodStream is a whole stream of "abcdef".
func goodStream() []*nyalav1.FetchTabletResponse {
	var t copyTotals
	return []*nyalav1.FetchTabletResponse{
		copyHeader(&nyalav1.ReplicaRecord{}, &nyalav1.RaftConfig{}, ident.OpID{Term: 1, Index: 1}, 5),
		t.chunk([]byte("ab"), 2), t.chunk([]byte("cdef"), 4), t.trailer(),
	}
}

// TestCopyStream: of a whole stream all comes out; one that lacks a message, has one twice or has two in the wrong order is
// found out.
func TestCopyStream(t *testing.T) {
	got, err := readCopy(streamOf(goodStream()...))
	require.NoError(t, err)
	require.Equal(t, "abcdef", got)
	var none copyTotals
	_, err = readCopy(streamOf(goodStream()[0], none.trailer()))
	require.NoError(t, err)

	for i := range goodStream() {
		g := goodStream()
		_, err := readCopy(streamOf(append(append([]*nyalav1.FetchTabletResponse{}, g[:i]...), g[i+1:]...)...))
		require.Equal(t, status.Corruption, status.CodeOf(err), "without message %d: %v", i, err)
		_, err = readCopy(streamOf(append(append([]*nyalav1.FetchTabletResponse{}, g[:i+1]...), g[i:]...)...))
		require.Equal(t, status.Corruption, status.CodeOf(err), "message %d twice: %v", i, err)
		if i > 0 {
			g[i-1], g[i] = g[i], g[i-1]
			_, err = readCopy(streamOf(g...))
			require.Equal(t, status.Corruption, status.CodeOf(err), "messages %d and %d swapped: %v", i-1, i, err)
		}
	}
	_, err = readCopy(streamOf(goodStream()[0], &nyalav1.FetchTabletResponse{}))
	require.Equal(t, status.Corruption, status.CodeOf(err), "%v", err)
	broken := errors.New("broken")
	for n := range 5 {
		whole, left := streamOf(goodStream()...), n
		_, err := readCopy(copyReader{recv: func() (*nyalav1.FetchTabletResponse, error) {
			if left == 0 {
				return nil, broken
			}
			left--
			return whole.recv()
		}})
		require.ErrorIs(t, err, broken, "after %d messages", n)
	}
}

// FuzzCopyStream: a stream of any messages ends with its own end or an error, and what is accepted adds up.
func FuzzCopyStream(f *testing.F) {
	frame := func(msgs []*nyalav1.FetchTabletResponse) (out []byte) {
		for _, m := range msgs {
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			out = append(binary.AppendUvarint(out, uint64(len(b))), b...)
		}
		return out
	}
	f.Add(frame(goodStream()))
	f.Add(frame(goodStream()[:3]))
	f.Add([]byte{0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := copyReader{recv: func() (*nyalav1.FetchTabletResponse, error) {
			n, k := binary.Uvarint(b)
			if k <= 0 || n > uint64(len(b)-k) {
				return nil, io.EOF
			}
			m := new(nyalav1.FetchTabletResponse)
			err := proto.Unmarshal(b[k:k+int(n)], m)
			b = b[k+int(n):]
			return m, err
		}}
		size := len(b)
		all, err := readCopy(r)
		if len(all) > size {
			t.Fatalf("%d bytes of pairs in %d bytes", len(all), size)
		}
		if err == nil && len(b) > 0 {
			if n, k := binary.Uvarint(b); k > 0 && n <= uint64(len(b)-k) {
				t.Fatal("accepted with something behind it")
			}
		}
	})
}
