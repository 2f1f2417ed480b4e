package rpc

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// settleTimeout bounds how long a stop waits for connections that have just been accepted to say what they speak.
const settleTimeout = 250 * time.Millisecond

// frontDoor is all that a connection passes before gRPC has it: the acceptors, the limits, and the mux.
type frontDoor struct {
	cfg       ServerConfig
	acceptor  *acceptorMetrics
	limits    *limitMetrics
	muxes     *muxMetrics
	admission *admission
	mux       *mux

	mu        sync.Mutex
	acceptors *acceptors // nil before listen
	every     int        // ServerConfig.SampleEveryLog2
	ran       bool
}

func newFrontDoor(cfg ServerConfig) (_ *frontDoor, err error) {
	d := &frontDoor{cfg: cfg, every: cfg.SampleEveryLog2}
	trusted := cfg.TrustedSubnets
	if trusted == nil {
		if trusted, err = ParseSubnets(DefaultTrustedSubnets); err != nil {
			return nil, err
		}
	}
	total, perAddress := connectionLimits(cfg.MaxConnections, cfg.MaxConnectionsPerAddress)
	d.admission = newAdmission(trusted, total, perAddress)
	if d.acceptor, err = newAcceptorMetrics(cfg.Registerer); err != nil {
		return nil, err
	}
	if d.limits, err = newLimitMetrics(cfg.Registerer); err == nil {
		d.muxes, err = newMuxMetrics(cfg.Registerer)
	}
	if err != nil {
		d.unregister()
		return nil, err
	}
	return d, nil
}

func (d *frontDoor) unregister() {
	d.acceptor.unregister()
	if d.limits != nil {
		d.limits.unregister()
	}
	if d.muxes != nil {
		d.muxes.unregister()
	}
}

// listen binds all addresses and returns them.
func (d *frontDoor) listen() ([]net.Addr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, err := listenAcceptors(acceptorConfig{
		addresses: d.cfg.BindAddresses, backlog: d.cfg.Backlog, perAddress: d.cfg.Acceptors, reusePort: d.cfg.ReusePort, everyLog2: d.every,
		log: d.cfg.Logger, metrics: d.acceptor,
	})
	if err != nil {
		return nil, err
	}
	d.acceptors = a
	bound := a.addresses()
	d.mux = newMux(muxConfig{
		addr: bound[0], preambleTimeout: d.cfg.HandshakeTimeout, admission: d.admission, webAddress: d.cfg.WebAddress,
		log: d.cfg.Logger, metrics: d.muxes,
	})
	d.warnPublic(bound)
	return bound, nil
}

// warnPublic says what an address that the world may reach means as long as nobody has to show who they are.
func (d *frontDoor) warnPublic(bound []net.Addr) {
	public := publicAddresses(bound, net.InterfaceAddrs)
	switch {
	case len(public) == 0:
	case unrestricted(d.admission.trusted):
		d.cfg.Logger.Warn("listening on public addresses, and --trusted_subnets lets anybody read, change and delete all data",
			"addresses", public, "trusted_subnets", subnetStrings(d.admission.trusted))
	default:
		d.cfg.Logger.Warn("listening on public addresses; connections from outside --trusted_subnets are refused",
			"addresses", public, "trusted_subnets", subnetStrings(d.admission.trusted))
	}
}

func subnetStrings(subnets []netip.Prefix) []string {
	var out []string
	for _, p := range subnets {
		out = append(out, p.String())
	}
	return out
}

// run accepts until stop.
func (d *frontDoor) run() {
	d.mu.Lock()
	d.ran = true
	d.mu.Unlock()
	d.acceptors.run(d.mux.take)
}

// stop has run end, and waits a moment for what it took in last.
func (d *frontDoor) stop() {
	d.acceptors.stop()
	<-d.acceptors.stopped
	d.mux.settle(settleTimeout)
}

// close gives back all that is held. gRPC has stopped.
func (d *frontDoor) close() {
	d.mu.Lock()
	a, ran := d.acceptors, d.ran
	d.mu.Unlock()
	if a != nil {
		a.stop()
		if !ran {
			a.close()
		}
		<-a.stopped
		d.mux.stop()
	}
	d.unregister()
}

// setSampleEvery changes how often the acceptors look at their queues.
func (d *frontDoor) setSampleEvery(log2 int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.every = log2
	if d.acceptors != nil {
		d.acceptors.setEvery(log2)
	}
}
