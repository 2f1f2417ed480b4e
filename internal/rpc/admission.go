package rpc

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// refusal is why a connection isn't let in; admitted is none.
type refusal uint8

const (
	admitted refusal = iota
	refusedUntrusted
	refusedTooMany
	refusedTooManyOfAddress
	numRefusals
)

// String is the reason's name in metrics.
func (r refusal) String() string {
	return [numRefusals]string{"admitted", "untrusted_subnet", "max_connections", "max_connections_per_address"}[r]
}

// admission decides who is let in, and counts who is.
type admission struct {
	trusted         []netip.Prefix
	max, perAddress int

	mu        sync.Mutex
	open      int
	byAddress map[netip.Addr]int // connections, for addresses that have any
}

func newAdmission(trusted []netip.Prefix, limit, perAddress int) *admission {
	return &admission{trusted: trusted, max: limit, perAddress: perAddress, byAddress: map[netip.Addr]int{}}
}

// trusts says whether connections from this address may come in before they have shown who they are.
func (a *admission) trusts(from netip.Addr) bool { return contains(a.trusted, from) }

// admit counts a connection from this address in, or says why not. Each one that was let in must leave.
func (a *admission) admit(from netip.Addr) refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.open >= a.max:
		return refusedTooMany
	case a.byAddress[from] >= a.perAddress:
		return refusedTooManyOfAddress
	}
	a.open++
	a.byAddress[from]++
	return admitted
}

// leave takes back an admission.
func (a *admission) leave(from netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open--
	if n := a.byAddress[from] - 1; n > 0 {
		a.byAddress[from] = n
	} else {
		delete(a.byAddress, from)
	}
}

// mostConnections bounds --rpc_max_connections where it is left to us: each costs some ten KiB.
const mostConnections = 1 << 16

// connectionLimits fills in what -1 stands for: half of the files that the process may open, and half of that for one
// address, so that neither connections keep the server from its data nor one client keeps out the others.
func connectionLimits(total, perAddress int) (int, int) {
	if total < 0 {
		total = mostConnections
		var files unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil && files.Cur < math.MaxInt32 {
			total = min(total, max(int(files.Cur)/2, 1))
		}
	}
	if perAddress < 0 {
		perAddress = max(total/2, 1)
	}
	return total, perAddress
}

// validateConnectionLimits returns what is wrong with the limits of a config.
func validateConnectionLimits(total, perAddress int) error {
	var errs []error
	if total != -1 && total < 1 {
		errs = append(errs, fmt.Errorf("--rpc_max_connections %d: want 1 or more, or -1 for half of the files that the process may open", total))
	}
	if perAddress != -1 && perAddress < 1 {
		errs = append(errs, fmt.Errorf("--rpc_max_connections_per_address %d: want 1 or more, or -1 for half of --rpc_max_connections", perAddress))
	}
	return errors.Join(errs...)
}
