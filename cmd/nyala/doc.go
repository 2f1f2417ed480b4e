// Command nyala is the command line of Nyala: see package internal/cli, or nyala --help.
package main
