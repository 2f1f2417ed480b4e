package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

// The types of a replica, in Kudu's words.
const (
	typeVoter    = "VOTER"
	typeNonVoter = "NON_VOTER"
)

func (a *app) tabletChangeConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "change_config",
		Short: "change on which servers a tablet's replicas are",
		Long: `Change on which servers a tablet's replicas are. A new replica begins as a non-voter (a learner), is copied from the tablet's
leader, and becomes a voter when it is level. Each change is one step of the tablet's group: it is made or it isn't.

A command waits as long as it sees progress; without any for --timeout it gives up and says how things stand. What it has begun
goes on, and the same command again goes on with it.`,
	}
	cmd.AddCommand(a.addReplica(), a.removeReplica(), a.changeReplicaType(), a.moveReplica())
	return cmd
}

func (a *app) addReplica() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add_replica TABLET SERVER [VOTER|NON_VOTER]",
		Short: "add a replica on a tablet server, as a voter unless told otherwise",
		Long: `Add a replica of a tablet on a tablet server, named by its uuid, a beginning of it, or its RPC address. As a voter it counts
in majorities: wait for it to be level, then promote it. As a non-voter it only follows.`,
		Args: cobra.RangeArgs(2, 3),
	}
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		want := typeVoter
		if len(args) == 3 {
			var err error
			if want, err = parseReplicaType(args[2]); err != nil {
				return err
			}
		}
		ch, err := a.newChanger(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		to, err := findServer(cmd.Context(), c, args[1])
		if err != nil {
			return err
		}
		if err := ch.add(cmd.Context(), to, want == typeNonVoter); err != nil {
			return err
		}
		if want == typeNonVoter {
			return ch.done(cmd.Context(), fmt.Sprintf("a replica on %s follows tablet %s as a non-voter", to.rpc(), ch.tablet.ID))
		}
		if err := ch.promote(cmd.Context(), to, nil); err != nil {
			return err
		}
		return ch.done(cmd.Context(), fmt.Sprintf("the replica on %s is a voter of tablet %s", to.rpc(), ch.tablet.ID))
	})
	return cmd
}

func (a *app) removeReplica() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove_replica TABLET SERVER",
		Short: "remove the replica on a tablet server, which then deletes it",
		Args:  cobra.ExactArgs(2),
	}
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		ch, err := a.newChanger(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		from, err := findMember(cmd.Context(), c, ch, args[1])
		if err != nil {
			return err
		}
		if err := ch.remove(cmd.Context(), from); err != nil {
			return err
		}
		return ch.done(cmd.Context(), fmt.Sprintf("tablet %s has no replica on %s any more", ch.tablet.ID, from.rpc()))
	})
	return cmd
}

func (a *app) changeReplicaType() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "change_replica_type TABLET SERVER VOTER",
		Short: "make a non-voter a voter, once it is level",
		Args:  cobra.ExactArgs(3),
	}
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		switch want, err := parseReplicaType(args[2]); {
		case err != nil:
			return err
		case want == typeNonVoter:
			return usageError("a voter can't become a non-voter: remove the replica and add one as NON_VOTER")
		}
		ch, err := a.newChanger(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		server, err := findServer(cmd.Context(), c, args[1])
		if err != nil {
			return err
		}
		if err := ch.promote(cmd.Context(), server, nil); err != nil {
			return err
		}
		return ch.done(cmd.Context(), fmt.Sprintf("the replica on %s is a voter of tablet %s", server.rpc(), ch.tablet.ID))
	})
	return cmd
}

func (a *app) moveReplica() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "move_replica TABLET FROM_SERVER TO_SERVER",
		Short: "move a replica from one tablet server to another",
		Long: `Move a replica of a tablet from one tablet server to another: add one as a non-voter, wait until it is level, and then, in one
step, make it a voter and remove the other. The tablet never has fewer voters than before.`,
		Args: cobra.ExactArgs(3),
	}
	cmd.RunE = a.withClient(func(cmd *cobra.Command, c *client.Client, args []string) error {
		ch, err := a.newChanger(cmd.Context(), c, args[0])
		if err != nil {
			return err
		}
		from, err := findMember(cmd.Context(), c, ch, args[1])
		if err != nil {
			return err
		}
		to, err := findServer(cmd.Context(), c, args[2])
		if err != nil {
			return err
		}
		if from.id == to.id {
			return usageError("the replica is to move from %s to the same server", from.rpc())
		}
		if err := ch.add(cmd.Context(), to, false); err != nil {
			return err
		}
		if err := ch.promote(cmd.Context(), to, &from); err != nil {
			return err
		}
		return ch.done(cmd.Context(), fmt.Sprintf("the replica of tablet %s has moved from %s to %s", ch.tablet.ID, from.rpc(), to.rpc()))
	})
	return cmd
}

func parseReplicaType(s string) (string, error) {
	for _, t := range []string{typeVoter, typeNonVoter} {
		if strings.EqualFold(s, t) {
			return t, nil
		}
	}
	return "", usageError("a replica's type is %s or %s, not %q", typeVoter, typeNonVoter, s)
}

// serverRef is a tablet server as a command names it.
type serverRef struct {
	id        string
	addresses []string
}

func (s serverRef) rpc() string {
	if len(s.addresses) == 0 {
		return s.id
	}
	return s.addresses[0]
}

// findServer looks for a tablet server by its uuid, a beginning of it that no other has, or its RPC address.
func findServer(ctx context.Context, c *client.Client, name string) (serverRef, error) {
	servers, err := c.ListTabletServers(ctx)
	if err != nil {
		return serverRef{}, err
	}
	var all []serverRef
	for _, s := range servers {
		all = append(all, serverRef{s.ID, s.RPCAddresses})
	}
	return pickServer(all, name)
}

func pickServer(servers []serverRef, name string) (serverRef, error) {
	var found []serverRef
	for _, s := range servers {
		if s.id == name || slices.Contains(s.addresses, name) {
			return s, nil
		}
		if len(name) >= 4 && strings.HasPrefix(s.id, name) {
			found = append(found, s)
		}
	}
	switch len(found) {
	case 0:
		return serverRef{}, status.New(status.NotFound, "there is no tablet server %q; nyala tserver list shows those there are", name)
	case 1:
		return found[0], nil
	}
	return serverRef{}, status.New(status.InvalidArgument, "%d tablet servers begin with %q; give more of the uuid", len(found), name)
}

// findMember is findServer of a server that holds a replica; one that the master doesn't know is found by its uuid as well.
func findMember(ctx context.Context, c *client.Client, ch *changer, name string) (serverRef, error) {
	for _, r := range ch.tablet.Replicas {
		if r.UUID == name || r.RPC == name {
			return serverRef{r.UUID, []string{r.RPC}}, nil
		}
	}
	return findServer(ctx, c, name)
}

// changer changes one tablet's members through its leader, whoever that is at the moment.
type changer struct {
	a      *app
	c      *client.Client
	tablet tabletJSON
	how    atomic.Pointer[string] // how things stand, for the one who waits
}

func (a *app) newChanger(ctx context.Context, c *client.Client, tablet string) (*changer, error) {
	t, err := findTablet(ctx, c, tablet)
	if err != nil {
		return nil, err
	}
	return &changer{a: a, c: c, tablet: t}, nil
}

func (ch *changer) say(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	ch.how.Store(&s)
}

func (ch *changer) stands() string {
	if s := ch.how.Load(); s != nil {
		return *s
	}
	return "looking for the leader of tablet " + ch.tablet.ID
}

// add makes a server a member, as a learner, and waits until its replica is there where it is to stay one. A learner that is
// there already is gone on with.
func (ch *changer) add(ctx context.Context, s serverRef, level bool) error {
	if len(s.addresses) == 0 {
		return fmt.Errorf("the master knows no address of tablet server %s", s.id)
	}
	return ch.until(ctx, func(ctx context.Context, leader *nyalav1.ReplicaStatus) (*nyalav1.ChangeConfigRequest, bool, error) {
		p := memberOn(leader.GetConfig(), s.id)
		switch {
		case p == nil:
			return &nyalav1.ChangeConfigRequest{Add: []*nyalav1.Peer{{ServerId: s.id, Address: s.rpc()}}}, false, nil
		case !p.GetLearner():
			return nil, false, status.New(status.AlreadyPresent, "tablet %s has a replica on %s already: replica %d, a voter", ch.tablet.ID, s.rpc(), p.GetReplicaId())
		}
		return nil, !level || ch.level(ctx, s, leader), nil
	})
}

// promote makes a learner a voter once its leader says that it is level, and removes the replica on another server in the same
// step, if one is given.
func (ch *changer) promote(ctx context.Context, s serverRef, leaves *serverRef) error {
	return ch.until(ctx, func(ctx context.Context, leader *nyalav1.ReplicaStatus) (*nyalav1.ChangeConfigRequest, bool, error) {
		p := memberOn(leader.GetConfig(), s.id)
		if p == nil {
			return nil, false, status.New(status.NotFound, "tablet %s has no replica on %s (any more); %s", ch.tablet.ID, s.rpc(), membersText(leader.GetConfig()))
		}
		req := &nyalav1.ChangeConfigRequest{}
		if p.GetLearner() {
			req.Promote = []uint64{p.GetReplicaId()}
		}
		if leaves != nil {
			if old := memberOn(leader.GetConfig(), leaves.id); old != nil {
				req.Remove = []uint64{old.GetReplicaId()}
			}
		}
		if len(req.GetPromote())+len(req.GetRemove()) == 0 {
			return nil, true, nil
		}
		if p.GetLearner() && !ch.level(ctx, s, leader) {
			return nil, false, nil
		}
		return req, false, nil
	})
}

// remove removes the replica on a server.
func (ch *changer) remove(ctx context.Context, s serverRef) error {
	begun := false
	return ch.until(ctx, func(_ context.Context, leader *nyalav1.ReplicaStatus) (*nyalav1.ChangeConfigRequest, bool, error) {
		p := memberOn(leader.GetConfig(), s.id)
		switch {
		case p == nil && begun:
			return nil, true, nil
		case p == nil:
			return nil, false, status.New(status.NotFound, "tablet %s has no replica on %s; %s", ch.tablet.ID, s.rpc(), membersText(leader.GetConfig()))
		}
		begun = true
		return &nyalav1.ChangeConfigRequest{Remove: []uint64{p.GetReplicaId()}}, false, nil
	})
}

// level looks at a learner, and says whether it has applied about what its leader has: the leader has the last word.
func (ch *changer) level(ctx context.Context, s serverRef, leader *nyalav1.ReplicaStatus) bool {
	replicas := ch.replicas(ctx, s.rpc())
	if len(replicas) == 0 {
		ch.say("no replica on %s so far", s.rpc())
		return false
	}
	switch r := replicas[len(replicas)-1]; r.GetState() { // a copy that is being made stands last
	case nyalav1.TabletState_TABLET_STATE_COPYING:
		ch.say("the replica on %s is being copied: %d KiB so far", s.rpc(), r.GetCopiedBytes()>>10)
		return false
	case nyalav1.TabletState_TABLET_STATE_RUNNING:
		ch.say("the replica on %s has applied entry %d, the leader %d", s.rpc(), r.GetAppliedIndex(), leader.GetAppliedIndex())
		return r.GetAppliedIndex() >= leader.GetAppliedIndex()
	default:
		ch.say("the replica on %s: %s %s", s.rpc(), strings.ToLower(strings.TrimPrefix(r.GetState().String(), "TABLET_STATE_")), r.GetError())
		return false
	}
}

// replicas asks a server for what it holds of the tablet; nothing without an answer.
func (ch *changer) replicas(ctx context.Context, addr string) []*nyalav1.ReplicaStatus {
	answer, err := askServer(ctx, addr, ch.a.timeout.d, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.ListTabletsResponse, error) {
		return nyalav1.NewTabletAdminServiceClient(conn).ListTablets(ctx, &nyalav1.ListTabletsRequest{TabletIds: []string{ch.tablet.ID}})
	})
	if err != nil {
		ch.say("%v", err)
	}
	return answer.GetReplicas()
}

// leader finds the tablet's leader, and what it says of the tablet; nil: nobody is known to lead now.
func (ch *changer) leader(ctx context.Context) (*replicaJSON, *nyalav1.ReplicaStatus) {
	tablets, err := findTablets(ctx, ch.c, []string{ch.tablet.Table})
	if err != nil {
		ch.say("%v", err)
		return nil, nil
	}
	ch.say("tablet %s has no leader now", ch.tablet.ID)
	for _, t := range tablets {
		if l := t.leader(); t.ID == ch.tablet.ID && l != nil {
			for _, r := range ch.replicas(ctx, l.RPC) {
				if r.GetRole() == nyalav1.Role_ROLE_LEADER {
					return l, r
				}
			}
		}
	}
	return nil, nil
}

// lookAgain is the pause between two looks at how things stand.
const lookAgain = 100 * time.Millisecond

// until makes the changes that next asks for, on what the leader says at the moment, until next says that all is done. What the
// leader can't do yet is tried again as long as something moves; without that for the timeout it is given up.
func (ch *changer) until(ctx context.Context, next func(context.Context, *nyalav1.ReplicaStatus) (req *nyalav1.ChangeConfigRequest, done bool, err error)) error {
	p := newProgress(ch.a.Err, ch.stands)
	defer p.stop()
	moved := time.Now()
	for last := ""; ; {
		at, leader := ch.leader(ctx)
		if leader != nil {
			req, done, err := next(ctx, leader)
			if err != nil || done {
				return err
			}
			if req != nil {
				if err := ch.change(ctx, at, leader, req); err != nil {
					return err
				}
			}
		}
		if now := ch.stands(); now != last {
			moved, last = time.Now(), now
		}
		if time.Since(moved) > ch.a.timeout.d {
			return status.New(status.TimedOut, "tablet %s: nothing has moved for %v: %s; what was begun goes on, and so does the same command again",
				ch.tablet.ID, ch.a.timeout.d, ch.stands())
		}
		timer := time.NewTimer(lookAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// change asks the leader for one change. An error is one that passes by no waiting.
func (ch *changer) change(ctx context.Context, at *replicaJSON, leader *nyalav1.ReplicaStatus, req *nyalav1.ChangeConfigRequest) error {
	req.DestServerId, req.TabletId, req.ExpectOpidIndex = at.UUID, ch.tablet.ID, new(leader.GetConfig().GetOpidIndex())
	var code status.Code // of the call itself
	_, err := askServer(ctx, at.RPC, ch.a.timeout.d, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.ChangeConfigResponse, error) {
		resp, err := nyalav1.NewTabletAdminServiceClient(conn).ChangeConfig(ctx, req)
		code = status.CodeOf(status.FromGRPC(err))
		return resp, err
	})
	switch {
	case err == nil:
		ch.say("the change is made")
		return nil
	case code == status.TimedOut:
		return status.New(status.TimedOut, "tablet %s: its leader on %s didn't commit the change within %v: perhaps too few of its replicas run (nyala cluster ksck); the change may still come to pass",
			ch.tablet.ID, at.RPC, ch.a.timeout.d)
	case code == status.IllegalState, code.Retriable():
		ch.say("%v", err)
		return nil
	}
	return err
}

// done waits for the master to know, and says what was done.
func (ch *changer) done(ctx context.Context, what string) error {
	_, leader := ch.leader(ctx)
	for deadline := time.Now().Add(ch.a.timeout.d); leader != nil && time.Now().Before(deadline) && ctx.Err() == nil; {
		now, err := findTablet(ctx, ch.c, ch.tablet.ID)
		if err == nil && sameMembers(now, leader.GetConfig()) {
			break
		}
		timer := time.NewTimer(lookAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	_, err := fmt.Fprintln(ch.a.Out, what)
	return err
}

// sameMembers says whether the master names a config's members and their types.
func sameMembers(t tabletJSON, c *nyalav1.RaftConfig) bool {
	if len(t.Replicas) != len(c.GetPeers()) {
		return false
	}
	for _, r := range t.Replicas {
		p := memberOn(c, r.UUID)
		if p == nil || p.GetReplicaId() != r.ReplicaID || p.GetLearner() != (r.Role == roleName(client.RoleLearner)) {
			return false
		}
	}
	return true
}

// memberOn is the member on a server, nil if there is none.
func memberOn(c *nyalav1.RaftConfig, server string) *nyalav1.Peer {
	for _, p := range c.GetPeers() {
		if p.GetServerId() == server {
			return p
		}
	}
	return nil
}

// membersText names a config's members.
func membersText(c *nyalav1.RaftConfig) string {
	var names []string
	for _, p := range c.GetPeers() {
		name := p.GetAddress()
		if p.GetLearner() {
			name += " (" + typeNonVoter + ")"
		}
		names = append(names, name)
	}
	return "its replicas are on " + strings.Join(names, ", ")
}
