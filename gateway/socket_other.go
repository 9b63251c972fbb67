//go:build !linux

package gateway

import "net"

// setNotSentLowWater does nothing where there is no such socket option.
func setNotSentLowWater(net.Conn) {}
