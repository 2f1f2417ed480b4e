package e2e

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// TestReflection does what grpcurl does, which has nothing but an address: it asks a server which services it has and what
// their messages look like, makes a request from that, and reads the answer; and it asks for the server's health.
func TestReflection(t *testing.T) {
	c := newCluster(t, 1)
	cl := connect(t, c)
	numbersTable(t, cl, "numbers", 1, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for address, want := range map[string]string{
		c.MasterAddresses()[0]: "nyala.v1.MasterService", tabletServers(t, c)[0].RPC: "nyala.v1.TabletService",
	} {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		r := newReflected(ctx, t, conn)
		services := r.services()
		for _, name := range []string{want, "nyala.v1.ServerService", "grpc.health.v1.Health"} {
			if !slices.Contains(services, name) {
				t.Errorf("%s: no service %s in %v", address, name, services)
			}
		}
		for _, service := range []string{"", want} {
			h, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
			if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				t.Errorf("%s: health of %q: %v %v", address, service, h, err)
			}
		}
		if want != "nyala.v1.MasterService" {
			continue
		}
		answer := r.call(want, "ListTables")
		tables := answer.Get(answer.Descriptor().Fields().ByName("tables")).List()
		if tables.Len() != 1 {
			t.Fatalf("%s: %d tables", address, tables.Len())
		}
		table := tables.Get(0).Message()
		if name := table.Get(table.Descriptor().Fields().ByName("name")).String(); name != "numbers" {
			t.Errorf("%s: table %q", address, name)
		}
	}
}

// reflected is a server of which nothing is known but what it says.
type reflected struct {
	ctx    context.Context
	t      *testing.T
	conn   *grpc.ClientConn
	stream reflectionpb.ServerReflection_ServerReflectionInfoClient
}

func newReflected(ctx context.Context, t *testing.T, conn *grpc.ClientConn) *reflected {
	t.Helper()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stream.CloseSend(); err != nil {
			t.Error(err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) && ctx.Err() == nil {
			t.Error(err)
		}
	})
	return &reflected{ctx, t, conn, stream}
}

func (r *reflected) ask(req *reflectionpb.ServerReflectionRequest) *reflectionpb.ServerReflectionResponse {
	r.t.Helper()
	if err := r.stream.Send(req); err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.stream.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	return resp
}

func (r *reflected) services() (names []string) {
	r.t.Helper()
	resp := r.ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names
}

// call calls a method with an empty request.
func (r *reflected) call(service, method string) protoreflect.Message {
	r.t.Helper()
	resp := r.ask(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{
		FileContainingSymbol: service,
	}})
	set := &descriptorpb.FileDescriptorSet{}
	for _, b := range resp.GetFileDescriptorResponse().GetFileDescriptorProto() {
		f := &descriptorpb.FileDescriptorProto{}
		if err := proto.Unmarshal(b, f); err != nil {
			r.t.Fatal(err)
		}
		set.File = append(set.File, f)
	}
	files, err := protodesc.NewFiles(set)
	if err != nil {
		r.t.Fatal(err)
	}
	d, err := files.FindDescriptorByName(protoreflect.FullName(service))
	if err != nil {
		r.t.Fatal(err)
	}
	m := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	answer := dynamicpb.NewMessage(m.Output())
	if err := r.conn.Invoke(r.ctx, "/"+service+"/"+method, dynamicpb.NewMessage(m.Input()), answer); err != nil {
		r.t.Fatal(err)
	}
	return answer
}
