package cli

import "fmt"

// dumpFile reads the file of a server that doesn't run.
func (a *app) dumpFile(path string, _ walFlags, _ *walPrinter) error {
	return fmt.Errorf("%s: the server that it belongs to isn't running: start it to read its log", path)
}
