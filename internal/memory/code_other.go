//go:build !linux

package memory

// ReleaseCode does nothing on this system.
func ReleaseCode() {}
