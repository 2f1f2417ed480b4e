package cli

import (
	"testing"

	"github.com/stretchr/testify/require"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/internal/status"
)

func TestPickServer(t *testing.T) {
	servers := []serverRef{
		{"aaaa1111", []string{"h1:7050"}}, {"aaaa2222", []string{"h2:7050", "h2:7070"}}, {"bbbb3333", nil},
	}
	for name, want := range map[string]string{
		"aaaa1111": "aaaa1111", "aaaa2": "aaaa2222", "h2:7070": "aaaa2222", "bbbb": "bbbb3333",
	} {
		s, err := pickServer(servers, name)
		require.NoError(t, err, name)
		require.Equal(t, want, s.id)
	}
	require.Equal(t, "bbbb3333", servers[2].rpc())
	_, err := pickServer(servers, "aaaa")
	require.ErrorContains(t, err, `2 tablet servers begin with "aaaa"`)
	for _, name := range []string{"aaa", "cccc", "h1", ""} {
		_, err := pickServer(servers, name)
		require.Equal(t, status.NotFound, status.CodeOf(err), name)
	}
}

func TestReplicaTypes(t *testing.T) {
	for text, want := range map[string]string{"VOTER": typeVoter, "voter": typeVoter, "non_voter": typeNonVoter} {
		got, err := parseReplicaType(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := parseReplicaType("LEARNER")
	require.ErrorContains(t, err, "VOTER or NON_VOTER")
	require.Equal(t, exitUsage, exitCode(err))
}

// TestSameMembers: the master knows of a change when it names each member, with its id and type, and nobody else.
func TestSameMembers(t *testing.T) {
	c := &nyalav1.RaftConfig{Peers: []*nyalav1.Peer{
		{ReplicaId: 1, ServerId: "a", Address: "a:1"}, {ReplicaId: 4, ServerId: "b", Address: "b:1", Learner: true},
	}}
	good := []replicaJSON{{1, "a", "a:1", "leader"}, {4, "b", "b:1", "learner"}}
	require.True(t, sameMembers(tabletJSON{Replicas: good}, c))
	for name, r := range map[string][]replicaJSON{
		"one missing": good[:1], "one more": append([]replicaJSON{{5, "c", "c:1", "follower"}}, good...),
		"another id": {good[0], {3, "b", "b:1", "learner"}}, "a voter": {good[0], {4, "b", "b:1", "follower"}},
	} {
		require.False(t, sameMembers(tabletJSON{Replicas: r}, c), name)
	}
	require.Equal(t, "its replicas are on a:1, b:1 (NON_VOTER)", membersText(c))
}
