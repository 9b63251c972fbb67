package faultproxy

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddress returns a host:port without a listener, for a server that listens later
// or again. Its IP address differs from 127.0.0.1, which outgoing connections use, so
// none of them takes the port meanwhile.
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

// SamePort returns an address with the port of a different one, and with an IP address
// of its own.
func SamePort(address string) (string, error) {
	_, port, err := net.SplitHostPort(address)
	return net.JoinHostPort(ownIP(), port), err
}

func ownIP() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}
