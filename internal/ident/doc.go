// Package ident holds the identities that every layer speaks of: tables, tablets, servers and replicas, and a position in
// a log. They are types of their own so that the compiler refuses a term where an index is meant.
package ident
