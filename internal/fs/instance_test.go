package fs

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
)

const (
	serverA  = "0123456789abcdef0123456789abcdef"
	clusterA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	clusterB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func sampleInstance() Instance {
	return Instance{
		ServerID: serverA, Role: TabletServer,
		Created: time.Date(2013, 1, 1, 5, 0, 0, 1000, time.UTC),
	}
}

// TestInstanceFormat shows the file as doc.go draws it, to the byte, and that it comes back.
func TestInstanceFormat(t *testing.T) {
	in := sampleInstance()
	want := "nyala instance 1\nserver_id " + serverA + "\nrole tserver\ncluster_id -\ncreated 2013-01-01T05:00:00.000001Z\nstores_created false\ncrc32c 63c3d144\n"
	if got := string(in.encode()); got != want {
		t.Fatalf("the format changed; it is on disks:\n%s\nwant:\n%s", got, want)
	}
	in.ClusterID, in.StoresCreated = clusterA, true
	got, err := decodeInstance(in.encode())
	if err != nil || got != in {
		t.Fatalf("%+v came back as %+v: %v", in, got, err)
	}
}

// TestInstanceDamage shows that every shorter file and every file with one bit changed is refused, and that a later version
// is called that and not damage.
func TestInstanceDamage(t *testing.T) {
	in := sampleInstance()
	good := in.encode()
	for n := range good {
		if _, err := decodeInstance(good[:n]); err == nil {
			t.Fatalf("the first %d bytes were taken", n)
		}
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[n] ^= 1 << bit
			if _, err := decodeInstance(bad); err == nil {
				t.Fatalf("bit %d of byte %d changed, and it was taken", bit, n)
			}
		}
	}
	_, err := decodeInstance([]byte(strings.Replace(string(good), "instance 1", "instance 2", 1)))
	if err == nil || errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), `version "2"`) {
		t.Fatalf("a later version: %v", err)
	}
}

// FuzzDecodeInstance shows that no input panics the decoder and that what it takes is what encode makes.
func FuzzDecodeInstance(f *testing.F) {
	in := sampleInstance()
	f.Add(in.encode())
	in.ClusterID, in.StoresCreated, in.Role = ident.ClusterID(clusterA), true, Master
	f.Add(in.encode())
	f.Add([]byte("nyala instance 1\n"))
	f.Add([]byte("crc32c 00000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in, err := decodeInstance(b)
		if err != nil {
			return
		}
		if !bytes.Equal(in.encode(), b) {
			t.Fatalf("%q decodes to %+v, which encodes to %q", b, in, in.encode())
		}
	})
}
