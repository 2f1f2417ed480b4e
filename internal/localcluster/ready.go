package localcluster

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	nyalav1 "github.com/nyaladb/nyala/api/nyala/v1"
)

// probeTimeout bounds one question to a server; loopback answers in far less unless the server is stuck.
const probeTimeout = 2 * time.Second

// ready asks the server at the web address whether it is ready. The answer's first line says why it isn't.
func ready(ctx context.Context, web string) (ok bool, why string) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+web+"/readyz", nil)
	if err != nil {
		return false, err.Error()
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}
	resp, err := client.Do(req)
	if err != nil {
		return false, "doesn't answer yet"
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
	return resp.StatusCode == http.StatusOK, firstLine(string(body))
}

// askUUID asks the server at the RPC address for its own id.
func askUUID(ctx context.Context, rpc string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := grpc.NewClient("passthrough:///"+rpc, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return "", fmt.Errorf("server at %s: %w", rpc, err)
	}
	defer conn.Close()
	resp, err := nyalav1.NewServerServiceClient(conn).GetStatus(ctx, &nyalav1.GetStatusRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("ask the server at %s for its id: %w", rpc, err)
	}
	return resp.GetServerId(), nil
}
