// Package buildinfo says which build of Nyala this is. It imports nothing of Nyala, so that any layer may ask.
//
// The linker fills in what it is told (go build -ldflags "-X github.com/nyaladb/nyala/internal/daemon/buildinfo.version=v1.2.3");
// for the rest the information that Go itself puts in a binary is asked.
package buildinfo
