package fs

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nyaladb/nyala/internal/ident"
)

// Role is what a folder's server is.
type Role string

// The roles.
const (
	Master       Role = "master"
	TabletServer Role = "tserver"
)

const (
	instanceVersion = 1
	instanceMagic   = "nyala instance "
	instanceMaxSize = 4096
	createdLayout   = "2006-01-02T15:04:05.000000Z"
	noClusterID     = "-"
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// Instance says whose folder a folder is.
type Instance struct {
	ServerID  ident.ServerID
	Role      Role
	ClusterID ident.ClusterID // empty until known
	Created   time.Time       // UTC, to the microsecond
	// StoresCreated says that the WAL and the store were there once (I4).
	StoresCreated bool
}

// ErrDamaged is in the chain of an error about an instance file that is not one, or not a whole one.
var ErrDamaged = errors.New("damaged instance file")

func (in *Instance) encode() []byte {
	cluster := string(in.ClusterID)
	if cluster == "" {
		cluster = noClusterID
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%d\n", instanceMagic, instanceVersion)
	fmt.Fprintf(&b, "server_id %s\nrole %s\ncluster_id %s\n", in.ServerID, in.Role, cluster)
	fmt.Fprintf(&b, "created %s\nstores_created %t\n", in.Created.UTC().Format(createdLayout), in.StoresCreated)
	fmt.Fprintf(&b, "crc32c %08x\n", crc32.Checksum(b.Bytes(), crcTable))
	return b.Bytes()
}

// decodeInstance is the reverse of encode. It takes exactly what encode makes: any other byte sequence is an error.
func decodeInstance(b []byte) (Instance, error) {
	if len(b) == 0 {
		return Instance{}, fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	if len(b) > instanceMaxSize {
		return Instance{}, fmt.Errorf("%w: it has %d bytes", ErrDamaged, len(b))
	}
	head, _, _ := strings.Cut(string(b), "\n")
	if !strings.HasPrefix(head, instanceMagic) {
		return Instance{}, fmt.Errorf("%w: it doesn't begin with %q", ErrDamaged, instanceMagic)
	}
	if v := strings.TrimPrefix(head, instanceMagic); v != fmt.Sprint(instanceVersion) {
		return Instance{}, fmt.Errorf("instance file has format version %.20q, this program knows %d: start the version that wrote it", v, instanceVersion)
	}
	at := bytes.LastIndex(b, []byte("crc32c "))
	if at < 0 {
		return Instance{}, fmt.Errorf("%w: its end is missing", ErrDamaged)
	}
	if want := fmt.Sprintf("crc32c %08x\n", crc32.Checksum(b[:at], crcTable)); string(b[at:]) != want {
		return Instance{}, fmt.Errorf("%w: its CRC doesn't match", ErrDamaged)
	}
	in, err := parseFields(strings.Split(string(b[:at]), "\n"))
	if err != nil {
		return Instance{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if !bytes.Equal(in.encode(), b) {
		return Instance{}, fmt.Errorf("%w: it isn't in the form that this program writes", ErrDamaged)
	}
	return in, nil
}

func parseFields(lines []string) (in Instance, err error) {
	names := []string{"server_id", "role", "cluster_id", "created", "stores_created"}
	if len(lines) != len(names)+2 {
		return in, fmt.Errorf("it has %d lines", len(lines))
	}
	values := make([]string, len(names))
	for i, name := range names {
		v, ok := strings.CutPrefix(lines[i+1], name+" ")
		if !ok {
			return in, fmt.Errorf("line %d isn't %s", i+2, name)
		}
		values[i] = v
	}
	if _, err := ident.Bytes(values[0]); err != nil {
		return in, err
	}
	in.ServerID, in.Role = ident.ServerID(values[0]), Role(values[1])
	if in.Role != Master && in.Role != TabletServer {
		return in, fmt.Errorf("unknown role %q", values[1])
	}
	if values[2] != noClusterID {
		if _, err := ident.Bytes(values[2]); err != nil {
			return in, err
		}
		in.ClusterID = ident.ClusterID(values[2])
	}
	if in.Created, err = time.Parse(createdLayout, values[3]); err != nil {
		return in, err
	}
	in.StoresCreated = values[4] == "true"
	return in, nil
}

// readInstance reads dir's copy. An error that is os.ErrNotExist means that there is none.
func readInstance(dir string) (Instance, error) {
	f, err := os.Open(InstancePath(dir))
	if err != nil {
		return Instance{}, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, instanceMaxSize+1))
	if err != nil {
		return Instance{}, fmt.Errorf("read %s: %w", InstancePath(dir), err)
	}
	in, err := decodeInstance(b)
	if err != nil {
		return Instance{}, fmt.Errorf("%s: %w", InstancePath(dir), err)
	}
	return in, nil
}

// writeInstance replaces dir's copy; on nil the new one is durable, on an error the old one is still there (I1), or the
// new one is in its place without being known durable.
func writeInstance(dir string, in *Instance) error {
	return writeAtomic(InstancePath(dir), in.encode())
}

// Inspect reads whose folder dir is, without locking it. An error that is os.ErrNotExist means that it is nobody's.
func Inspect(dir string) (Instance, error) { return readInstance(dir) }
