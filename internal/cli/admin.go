package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
	"github.com/nyaladb/nyala/client"
	"github.com/nyaladb/nyala/internal/status"
)

// dial makes a connection to one server, for the questions that are put to a server alone. It doesn't wait for it to be up.
func dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(client.DefaultMaxMessageSize)))
}

// askServer puts one question to the server at addr, within the timeout. An error names the server.
func askServer[T any](ctx context.Context, addr string, timeout time.Duration,
	ask func(ctx context.Context, conn *grpc.ClientConn) (T, error),
) (T, error) {
	var zero T
	conn, err := dial(addr)
	if err != nil {
		return zero, fmt.Errorf("server %s: %w", addr, err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := ask(ctx, conn)
	if err != nil {
		return zero, serverError(addr, err)
	}
	return answer, nil
}

// serverError says in a few words why a server gave no answer.
func serverError(addr string, err error) error {
	err = status.FromGRPC(err)
	switch msg := err.Error(); {
	case strings.Contains(msg, "connection refused"):
		return fmt.Errorf("no server listens at %s", addr)
	case status.CodeOf(err) == status.TimedOut:
		return fmt.Errorf("the server at %s doesn't answer in time", addr)
	}
	return fmt.Errorf("the server at %s: %w", addr, err)
}

// getStatus asks a server what it is.
func getStatus(ctx context.Context, addr string, timeout time.Duration) (*nyalav1.GetStatusResponse, error) {
	return askServer(ctx, addr, timeout, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.GetStatusResponse, error) {
		return nyalav1.NewServerServiceClient(conn).GetStatus(ctx, &nyalav1.GetStatusRequest{})
	})
}

// listTablets asks a tablet server for its replicas.
func listTablets(ctx context.Context, addr string, timeout time.Duration) ([]*nyalav1.ReplicaStatus, error) {
	return listTabletsOf(ctx, addr, timeout, &nyalav1.ListTabletsRequest{})
}

func listTabletsOf(ctx context.Context, addr string, timeout time.Duration, req *nyalav1.ListTabletsRequest) ([]*nyalav1.ReplicaStatus, error) {
	answer, err := askServer(ctx, addr, timeout, func(ctx context.Context, conn *grpc.ClientConn) (*nyalav1.ListTabletsResponse, error) {
		return nyalav1.NewTabletAdminServiceClient(conn).ListTablets(ctx, req)
	})
	return answer.GetReplicas(), err
}

// withTimeout is context.WithTimeout under a shorter name for its cancel function's type.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, func()) {
	return context.WithTimeout(ctx, d)
}
