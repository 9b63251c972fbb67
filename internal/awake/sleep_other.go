//go:build !linux && !windows

package awake

import (
	"context"
	"errors"
)

// Watch is not implemented on this system: macOS announces sleep to programs with C
// libraries only.
func Watch(context.Context, func(asleep bool)) error { return errors.ErrUnsupported }
