// Package daemon is what nyala-master and nyala-tserver have in common: flags, logs, the web server, signals and the order
// in which parts start and stop.
//
// # Main types
//
// Program is a daemon's main: it reads flags, opens the log, runs the daemon until a signal comes and returns the exit code.
// Flags is the registry of flags: each has a name, group, tags, default, help, accepted values, current value and where it
// came from; --help, /varz and the documentation are made from it. Common are the flags that every daemon has. Registry holds
// the metrics and what each one is: /metrics gathers what a Selection asks for, /metrics/help and the documentation are made
// from the rest. Web is the web server; Health holds the checks behind /healthz and /readyz. Group runs parts.
//
// # Flags
//
// A value on the command line counts more than one in the environment (NYALA_FS_WAL_DIR), that more than one in the YAML
// file of --config, that more than the default. Dashes are taken for underscores. Everything that is wrong is said, a line
// each, before anything starts. Flags are bound to the fields of a typed config, whose values at that time are the defaults.
//
// # Life cycle
//
// Web and the RPC server have New, Listen (binds, so that actual ports are known) and Run(ctx). Group starts parts in order
// and stops them in reverse. The first SIGTERM or SIGINT ends the context that Program's Run got; a second one, or the
// passing of the stop timeout, ends the process at once. That is safe: everything acknowledged is on disk.
//
// # Exit codes
//
// 0: stopped as asked. 1: a part failed. 2: flags, config or surroundings were wrong and nothing was started. 3: the stop
// was forced.
//
// # Invariants
//
//	I1: nothing is started, opened or created before all flags have been found good.
//	I2: a part's Run isn't begun before Start of all parts up to it returned; a part is stopped only when all after it have.
//	I3: /readyz is 200 only while every check passes; /healthz doesn't depend on readiness.
//	I4: series of single tables and tablets aren't gathered unless they are asked for: the default output of /metrics doesn't
//	    grow with their number.
//
// # Concurrency
//
// Flags is not safe for changes after Program read it; reading is. Web and Health are safe for concurrent use.
//
// # Tests
//
// Whole programs are run in the test's process with their arguments, environment and files; the web server on port 0.
package daemon
