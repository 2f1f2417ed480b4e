package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

// masterRound bounds one question to all masters who leads.
const masterRound = 3 * time.Second

// masters knows which master leads.
type masters struct {
	addrs  []string // as configured
	search flight[string]

	mu     sync.Mutex
	leader string // "": not known
}

func (m *masters) known() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leader
}

// lost forgets the leading master if it is still addr, for hint, which may be empty.
func (m *masters) lost(addr, hint string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.leader == addr {
		m.leader = hint
	}
}

func (m *masters) found(addr string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leader = addr
}

// connect finds the leading master for the first time.
func (c *Client) connect(ctx context.Context) error {
	ctx, cancel := withTimeout(ctx, c.opts.Timeout)
	defer cancel()
	r := c.newRetry()
	for {
		err := c.findMaster(ctx)
		if err == nil {
			return nil
		}
		if !retriableSearch(err) {
			return err
		}
		if ctx.Err() == nil {
			r.blocked(err)
		}
		if perr := r.pause(ctx, c.opts.MaxBackoff); perr != nil {
			return c.masterFailure(ctx, r, "connect")
		}
	}
}

// callMaster runs fn against the leading master, finds that one when it must, and tries until ctx ends. what is for the
// error at the end. fn is told whether an earlier try may have been carried out.
func (c *Client) callMaster(ctx context.Context, what string,
	fn func(ctx context.Context, m nyalav1.MasterServiceClient, again bool) error,
) error {
	ctx, cancel := withTimeout(ctx, c.opts.Timeout)
	defer cancel()
	r := c.newRetry()
	hinted := false
	for {
		err := c.callMasterOnce(ctx, r, fn)
		if err == nil {
			return nil
		}
		if c.isClosed() {
			return closedError()
		}
		if ctx.Err() != nil {
			return c.masterFailure(ctx, r, what)
		}
		if !err.retriable() {
			return err.fault
		}
		// Another master named as the leader is asked at once, but only once between two pauses: two masters that name each
		// other must not make us spin.
		if err.code == status.NotTheLeader && c.masters.known() != "" && !hinted {
			hinted = true
			continue
		}
		hinted = false
		if perr := r.pause(ctx, c.opts.MaxBackoff); perr != nil {
			return c.masterFailure(ctx, r, what)
		}
	}
}

func (c *Client) callMasterOnce(ctx context.Context, r *retry,
	fn func(ctx context.Context, m nyalav1.MasterServiceClient, again bool) error,
) *callError {
	addr := c.masters.known()
	if addr == "" {
		if err := c.findMaster(ctx); err != nil {
			if ctx.Err() == nil {
				r.blocked(err)
			}
			return asCallError(err)
		}
		addr = c.masters.known()
	}
	if addr == "" { // lost again in between
		return asCallError(status.New(status.ServiceUnavailable, "no leading master"))
	}
	cc, err := c.conns.get(addr)
	if err != nil {
		return asCallError(err)
	}
	attempt, cancel := context.WithTimeout(ctx, c.opts.AttemptTimeout)
	defer cancel()
	cerr := asCallError(fn(attempt, nyalav1.NewMasterServiceClient(cc), r.executed))
	if cerr == nil {
		return nil
	}
	r.failed(ctx, "master "+addr, cerr)
	switch {
	case cerr.code == status.NotTheLeader:
		hint := cerr.fault.Leader.GetAddress()
		if hint == addr {
			hint = ""
		}
		c.masters.lost(addr, hint)
	case (cerr.unreachable() || cerr.code == status.TimedOut) && ctx.Err() == nil: // not so where the caller ran out of time
		c.masters.lost(addr, "")
	}
	return cerr
}

// findMaster asks all masters at once who leads; callers at the same moment share the question.
func (c *Client) findMaster(ctx context.Context) error {
	_, err := c.masters.search.start(c, masterRound, nil, c.askMasters).wait(ctx)
	return err
}

// masterAnswer is one master's word.
type masterAnswer struct {
	addr string
	info *nyalav1.GetClusterInfoResponse
	err  *callError
}

func (c *Client) askMasters(ctx context.Context) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan masterAnswer, len(c.masters.addrs))
	for _, addr := range c.masters.addrs {
		if !c.goroutine(func() { answers <- c.askMaster(ctx, addr) }) {
			return "", closedError()
		}
	}
	var silent, other *Error
	for range c.masters.addrs {
		a := <-answers
		leader := ""
		if a.err == nil {
			leader = leadingMaster(a, c.masters.addrs)
		}
		switch {
		case a.err != nil && a.err.unreachable():
			silent = a.err.fault
		case a.err != nil && !a.err.retriable():
			if a.err.code == status.NotSupported {
				return "", status.New(status.InvalidArgument, "the server at %s is no Nyala master: %s", a.addr, a.err.fault.Msg)
			}
			return "", status.Wrap(a.err.code, a.err.fault, "master %s", a.addr)
		case a.err != nil:
			other = a.err.fault
		case leader == "" || a.info.GetClusterId() == "":
			other = status.New(status.ServiceUnavailable, "master %s knows no leading master", a.addr)
		default:
			if err := c.joinCluster(a); err != nil {
				return "", err
			}
			c.masters.found(leader)
			return leader, nil
		}
	}
	if other != nil {
		list := strings.Join(c.masters.addrs, ", ")
		return "", status.Wrap(status.ServiceUnavailable, other, "no leading master among %s", list)
	}
	return "", c.noMaster(silent)
}

func (c *Client) noMaster(cause error) *Error {
	return &Error{
		Code: status.ServiceUnavailable, Err: cause,
		Msg: fmt.Sprintf("no master at %s: is one running? try nyala local up", strings.Join(c.masters.addrs, ", ")),
	}
}

func (c *Client) askMaster(ctx context.Context, addr string) masterAnswer {
	cc, err := c.conns.get(addr)
	if err != nil {
		return masterAnswer{addr: addr, err: asCallError(err)}
	}
	info, err := nyalav1.NewMasterServiceClient(cc).GetClusterInfo(ctx, &nyalav1.GetClusterInfoRequest{})
	return masterAnswer{addr: addr, info: info, err: asCallError(err)}
}

// joinCluster takes over the cluster's id, or refuses a master of another cluster.
func (c *Client) joinCluster(a masterAnswer) error {
	id := a.info.GetClusterId()
	if c.conns.clusterID.CompareAndSwap(nil, &id) {
		return nil
	}
	if known := *c.conns.clusterID.Load(); known != id {
		return status.New(status.ClusterIDMismatch,
			"the master at %s belongs to cluster %s, this client to cluster %s: is its address another cluster's now?",
			a.addr, id, known)
	}
	return nil
}

// leadingMaster is the address at which to reach the master that leads by a's word; empty: it knows of none. An address
// that was configured goes before one that the masters advertise: it is known to work from here.
func leadingMaster(a masterAnswer, configured []string) string {
	for _, m := range a.info.GetMasters() {
		if m.GetRole() != nyalav1.Role_ROLE_LEADER {
			continue
		}
		if len(a.info.GetMasters()) == 1 {
			return a.addr
		}
		for _, addr := range m.GetRpcAddresses() {
			for _, known := range configured {
				if addr == known {
					return addr
				}
			}
		}
		if addrs := m.GetRpcAddresses(); len(addrs) > 0 {
			return addrs[0]
		}
	}
	return ""
}

// retriableSearch says whether another round of asking the masters may do better.
func retriableSearch(err error) bool {
	code := status.CodeOf(err)
	return code.Retriable() || code == status.TimedOut
}

// masterFailure is the error when ctx ended: that no master is there where that is the cause, else all that was tried.
func (c *Client) masterFailure(ctx context.Context, r *retry, what string) error {
	var last *Error
	switch {
	case c.isClosed() || r.tries > 0 || errors.Is(ctx.Err(), context.Canceled):
		return r.failure(ctx, what)
	case r.last == nil && c.conns.clusterID.Load() == nil:
		return c.noMaster(ctx.Err())
	case errors.As(r.last, &last) && last.Code == status.ServiceUnavailable:
		return last
	}
	return r.failure(ctx, what)
}
