package rpc

import "bytes"

// protocol is what a connection's first bytes say it speaks.
type protocol uint8

const (
	protocolUnknown protocol = iota // nothing that we know
	protocolGRPC                    // HTTP/2 with prior knowledge
	protocolTLS                     // a ClientHello
	protocolKudu                    // Kudu's own RPC
	protocolHTTP1
	numProtocols
)

// String is the protocol's name in metrics.
func (p protocol) String() string {
	return [numProtocols]string{"garbage", "grpc", "tls", "kudu", "http1"}[p]
}

// preambleSize is how many bytes are enough to tell: HTTP/2's preface is the longest.
const preambleSize = 24

// preambles are what the protocols begin with.
var preambles = []struct {
	protocol protocol
	bytes    []byte
}{
	{protocolGRPC, []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
	// A handshake record of TLS 1.0, which stands for all later versions too; SSL 3.0 says 3, 0.
	{protocolTLS, []byte{0x16, 3, 1}},
	{protocolTLS, []byte{0x16, 3, 0}},
	{protocolTLS, []byte{0x16, 3, 2}},
	{protocolTLS, []byte{0x16, 3, 3}},
	{protocolKudu, []byte("hrpc")},
	{protocolHTTP1, []byte("GET ")},
	{protocolHTTP1, []byte("HEAD ")},
	{protocolHTTP1, []byte("POST ")},
	{protocolHTTP1, []byte("PUT ")},
	{protocolHTTP1, []byte("PATCH ")},
	{protocolHTTP1, []byte("DELETE ")},
	{protocolHTTP1, []byte("OPTIONS ")},
	{protocolHTTP1, []byte("CONNECT ")},
	{protocolHTTP1, []byte("TRACE ")},
}

// tellProtocol says what a connection that begins with b speaks; more is true while later bytes may still tell, which is
// never so with preambleSize of them. No preamble is the beginning of another one, so the first whole one is it.
func tellProtocol(b []byte) (p protocol, more bool) {
	for _, pre := range preambles {
		if bytes.HasPrefix(b, pre.bytes) {
			return pre.protocol, false
		}
		more = more || bytes.HasPrefix(pre.bytes, b)
	}
	return protocolUnknown, more
}
