package client

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nyaladb/nyala/internal/status"
)

// deadAddress is one at which nobody listens.
func deadAddress(t *testing.T) string {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

// TestConnectNoMaster shows what a newcomer sees without a cluster, word for word, and that the deadline is kept.
func TestConnectNoMaster(t *testing.T) {
	a, b := deadAddress(t), deadAddress(t)
	for _, c := range []struct {
		masters []string
		want    string
	}{
		{[]string{a}, "no master at " + a + ": is one running? try nyala local up"},
		{[]string{a, b}, "no master at " + a + ", " + b + ": is one running? try nyala local up"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		_, err := Connect(ctx, Options{Masters: c.masters})
		cancel()
		if err == nil || err.Error() != c.want {
			t.Errorf("connect: %v, want %q", err, c.want)
		}
		if CodeOf(err) != CodeServiceUnavailable {
			t.Errorf("code %v", CodeOf(err))
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("took %v", d)
		}
	}
}

// TestConnectSilent connects to a port that takes connections and says nothing.
func TestConnectSilent(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Connect(ctx, Options{Masters: []string{lis.Addr().String()}})
	if err == nil || !strings.HasPrefix(err.Error(), "no master at ") {
		t.Errorf("connect: %v", err)
	}
}

// TestConnectWrongServer names a tablet server's address as a master's.
func TestConnectWrongServer(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	_, err := Connect(t.Context(), Options{Masters: []string{c.servers[0].addr}})
	if err == nil || !strings.Contains(err.Error(), "is no Nyala master") || CodeOf(err) != CodeInvalidArgument {
		t.Errorf("connect: %v", err)
	}
}

// TestConnectFindsLeader has three masters, of which one is dead and the last leads.
func TestConnectFindsLeader(t *testing.T) {
	c := newFakeCluster(t, 3, 1)
	c.leader = 2
	c.masters[0].kill()
	cl := c.connect(Options{})
	if cl.ClusterID() != fakeClusterID {
		t.Errorf("cluster id %q", cl.ClusterID())
	}
	if _, err := cl.ListTables(t.Context(), ""); err != nil {
		t.Error(err)
	}
	// One follower's address is enough: the others are named by it.
	cl = c.connect(Options{Masters: []string{c.masters[1].addr}})
	if _, err := cl.ListTables(t.Context(), ""); err != nil {
		t.Error(err)
	}
}

// TestConnectWaitsForLeader has masters without a leader until some calls have come.
func TestConnectWaitsForLeader(t *testing.T) {
	c := newFakeCluster(t, 3, 1)
	c.leader = -1
	asked := 0
	c.setHook(func(call *fakeCall) error {
		if call.after {
			return nil
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if asked++; asked == 7 {
			c.leader = 1
		}
		return nil
	})
	c.connect(Options{})

	c.mu.Lock()
	c.leader = -1
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Connect(ctx, Options{Masters: c.masterAddrs()})
	if err == nil || !strings.Contains(err.Error(), "no leading master among "+strings.Join(c.masterAddrs(), ", ")) {
		t.Errorf("connect: %v", err)
	}
}

// TestMasterFailover moves the masters' leadership under a client: by a hint, without one, and with the leader dead.
func TestMasterFailover(t *testing.T) {
	c := newFakeCluster(t, 3, 1)
	cl := c.connect(Options{})
	lead := func(i int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leader = i
	}
	for _, i := range []int{1, 2, 0} {
		lead(i)
		if _, err := cl.ListTables(t.Context(), ""); err != nil {
			t.Fatalf("leader %d: %v", i, err)
		}
	}
	c.masters[0].kill()
	lead(1)
	if _, err := cl.ListTables(t.Context(), ""); err != nil {
		t.Fatalf("leader dead: %v", err)
	}
	c.masters[1].kill()
	c.masters[2].kill()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := cl.ListTables(ctx, "")
	if CodeOf(err) != CodeTimedOut || !strings.Contains(err.Error(), "list tables: timed out after") ||
		!strings.Contains(err.Error(), c.masters[1].addr) {
		t.Errorf("all dead: %v", err)
	}
	c.masters[1].start()
	if _, err := cl.ListTables(t.Context(), ""); err != nil {
		t.Errorf("back again: %v", err)
	}
}

// TestClusterID shows that each call but the first question carries the cluster's id, and that a master of another cluster is
// refused by name.
func TestClusterID(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	if _, err := cl.ListTables(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.ListMasters(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	if len(c.withoutID) != 1 || c.withoutID["MasterService/GetClusterInfo"] != 1 || c.badID != 0 {
		t.Errorf("without the id: %v, with another: %d", c.withoutID, c.badID)
	}
	c.mu.Unlock()
	c.setHook(func(*fakeCall) error {
		return status.New(status.ClusterIDMismatch, "this is cluster ffff, not %s", fakeClusterID)
	})
	_, err := cl.ListTables(t.Context(), "")
	if CodeOf(err) != CodeClusterIDMismatch || !strings.Contains(err.Error(), "this is cluster ffff") {
		t.Errorf("another cluster: %v", err)
	}
}

// TestClose shows that Close ends what is under way and that nothing works after it.
func TestClose(t *testing.T) {
	c := newFakeCluster(t, 1, 1)
	cl := c.connect(Options{})
	waiting := make(chan struct{})
	c.setHook(func(call *fakeCall) error {
		close(waiting)
		<-call.ctx.Done()
		return call.ctx.Err()
	})
	go func() {
		<-waiting
		cl.Close()
	}()
	if _, err := cl.ListTables(t.Context(), ""); !errors.Is(err, ErrClosed) {
		t.Errorf("call under way: %v", err)
	}
	if _, err := cl.ListTables(t.Context(), ""); !errors.Is(err, ErrClosed) {
		t.Errorf("call after: %v", err)
	}
	if err := cl.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}

// TestOptions checks what Validate finds, all at once, and the addresses' default port.
func TestOptions(t *testing.T) {
	err := Options{Masters: []string{"a:b:c", ""}, Timeout: -1, MaxMessageSize: 5}.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`master address ""`, "Timeout -1ns", "MaxMessageSize 5"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	o := Options{Masters: []string{"a", "b:1", "::1", "[::2]:3"}}.withDefaults()
	if got := strings.Join(o.Masters, " "); got != "a:7051 b:1 [::1]:7051 [::2]:3" {
		t.Errorf("masters %s", got)
	}
	if got := (Options{}).withDefaults().Masters[0]; got != "localhost:7051" {
		t.Errorf("default master %s", got)
	}
}
