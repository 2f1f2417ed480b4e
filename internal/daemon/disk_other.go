//go:build !unix

package daemon

import "errors"

func diskSpace(string) (size, free uint64, err error) { return 0, 0, errors.ErrUnsupported }
