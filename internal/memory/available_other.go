//go:build !linux && !darwin

package memory

import "errors"

func available() (int64, error) { return 0, errors.ErrUnsupported }
