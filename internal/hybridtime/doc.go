// Package hybridtime holds the hybrid timestamp: the number that orders every write and names every snapshot.
//
// A Timestamp is a physical part, microseconds since the Unix epoch, shifted left by twelve bits, and a logical part in
// those twelve bits. The layout is Kudu's, so that tools which know one know the other. Giving timestamps out is the
// business of package clock; this package only knows how to take one apart.
package hybridtime
