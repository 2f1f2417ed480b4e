package localcluster

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// loopback is where all servers of a local cluster listen.
const loopback = "127.0.0.1"

// The default ports are Kudu's; each further server of a role lies portStep above the one before, and so do clusters that
// run side by side.
const (
	masterRPCPort  = 7051
	masterWebPort  = 8051
	tserverRPCPort = 7050
	tserverWebPort = 8050
	portStep       = 10
	portSlots      = 90
)

// randomLow and randomHigh bound the ports taken at random: below the range from which systems take the ports of outgoing
// connections, so that no client sits on a killed server's port when it comes back.
const (
	randomLow  = 10000
	randomHigh = 31000
)

// portChooser hands out pairs of free ports, none twice.
type portChooser struct {
	taken  map[string]bool // addresses of servers that may be down right now
	random bool
	free   func(address string) bool
}

func newPortChooser(st *state, random bool) *portChooser {
	p := &portChooser{taken: map[string]bool{}, random: random, free: portFree}
	for _, s := range st.Servers {
		p.taken[s.RPC], p.taken[s.Web] = true, true
	}
	return p
}

// choose returns an RPC and a web address for a server of the role.
func (p *portChooser) choose(role Role) (rpc, web string, err error) {
	rpcPort, webPort := tserverRPCPort, tserverWebPort
	if role == RoleMaster {
		rpcPort, webPort = masterRPCPort, masterWebPort
	}
	if !p.random {
		for slot := range portSlots {
			rpc, web := address(rpcPort+slot*portStep), address(webPort+slot*portStep)
			if p.take(rpc, web) {
				return rpc, web, nil
			}
		}
	}
	for range 1000 {
		port := randomLow + 2*rand.IntN((randomHigh-randomLow)/2)
		if rpc, web := address(port), address(port+1); p.take(rpc, web) {
			return rpc, web, nil
		}
	}
	return "", "", fmt.Errorf("found no two free ports on %s for a %s", loopback, role)
}

func (p *portChooser) take(rpc, web string) bool {
	if p.taken[rpc] || p.taken[web] || !p.free(rpc) || !p.free(web) {
		return false
	}
	p.taken[rpc], p.taken[web] = true, true
	return true
}

func address(port int) string { return net.JoinHostPort(loopback, strconv.Itoa(port)) }

// portFree says whether a server could listen at the address now.
func portFree(address string) bool {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return false
	}
	l.Close()
	return true
}
