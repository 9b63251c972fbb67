//go:build !linux && !darwin && !windows

package awake

import "errors"

// Hold is not implemented on this system.
func Hold(string) (release func(), err error) {
	return nil, errors.New("not implemented on this system")
}

// Mains reports whether the machine runs on mains power.
func Mains() bool { return true }
