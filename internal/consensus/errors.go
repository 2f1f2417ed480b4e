package consensus

import (
	"fmt"

	"github.com/nyaladb/nyala/internal/hybridtime"
	"github.com/nyaladb/nyala/internal/ident"
	"github.com/nyaladb/nyala/internal/status"
)

// StampOrderError says that a log's timestamps don't rise with the index (I3): the log of the replica, or what its leader
// sent it, can't be trusted.
type StampOrderError struct {
	Tablet          ident.TabletID
	At              ident.OpID
	Timestamp, Last hybridtime.Timestamp
}

// Error names the entry and both timestamps.
func (e *StampOrderError) Error() string {
	return fmt.Sprintf("tablet %s: entry %s has timestamp %s, which is not above %s before it: the replica stops before this reaches its log",
		e.Tablet, e.At, e.Timestamp, e.Last)
}

func errNoGroup(tablet ident.TabletID) error {
	return status.New(status.TabletNotFound, "tablet %s: no replica runs on this server", tablet)
}

func errStopped(tablet ident.TabletID) error {
	return status.New(status.TabletNotRunning, "tablet %s: its replica on this server is stopping", tablet)
}

func errFailed(tablet ident.TabletID, cause error) error {
	return status.Wrap(status.TabletFailed, cause, "tablet %s: its replica on this server has failed", tablet)
}

func errTooBusy(tablet ident.TabletID, what string) error {
	return status.New(status.TooBusy, "tablet %s: %s; try again a little later", tablet, what)
}

func errHostStopped() error {
	return status.New(status.ServiceUnavailable, "this server is stopping")
}
