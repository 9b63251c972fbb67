package faultproxy

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddress returns a host:port on which nothing listens, for a server that listens
// later or again. Its IP address is not 127.0.0.1, from which outgoing connections
// come, so none of them takes the port in the meantime.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", OwnAddress())
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// OwnAddress returns a random loopback IP address with port 0. The listener there can
// be closed and opened again: see [FreeAddress].
func OwnAddress() string { return ownIP() + ":0" }

// SamePort returns an address with a new IP address and the port of the given one.
func SamePort(address string) (string, error) {
	_, port, err := net.SplitHostPort(address)
	return net.JoinHostPort(ownIP(), port), err
}

func ownIP() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}
