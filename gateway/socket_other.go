//go:build !linux

package gateway

import "net"

// setOptions does nothing where there are no such socket options.
func setOptions(net.Conn) {}

// kernelQueued is not known here.
func kernelQueued(net.Conn) int { return 0 }
