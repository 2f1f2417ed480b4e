// Package status holds the one set of error codes that servers answer with, and the typed error that carries one.
//
// Inside a server a package keeps its own errors; the roles turn them into an *Error at the border. ToGRPC and FromGRPC
// carry it over the wire whole, so that a client sees the very code that the server gave.
package status
