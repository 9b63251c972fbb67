// Package wol wakes machines on the networks of this one (Wake-on-LAN), and finds the addresses by
// which this machine can be woken.
package wol

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
)

// Port is the UDP port of magic packets. Network cards look at the payload alone.
const Port = 9

// Packet returns the magic packet for a hardware address of 6 bytes.
func Packet(at net.HardwareAddr) []byte {
	packet := slices.Repeat([]byte{0xff}, 6)
	return append(packet, slices.Repeat([]byte(at), 16)...)
}

// Addresses returns at most the given number of hardware addresses: those of this machine's
// interfaces that are up and have an IPv4 network with a broadcast address.
func Addresses(most int) (list []string) {
	for _, n := range networks() {
		if at := n.at.String(); len(n.at) == 6 && !slices.Contains(list, at) && len(list) < most {
			list = append(list, at)
		}
	}
	return list
}

// errNoNetwork reports a machine without a network for magic packets.
var errNoNetwork = errors.New("this machine has no network with a broadcast address")

// Send broadcasts a magic packet on each network of this machine. It fails if no network
// has taken it.
func Send(at net.HardwareAddr) error {
	if len(at) != 6 {
		return fmt.Errorf("hardware address %s has %d bytes; want 6", at, len(at))
	}
	failed, sent := errNoNetwork, false
	for _, n := range networks() {
		if err := n.send(Packet(at)); err != nil {
			failed = err
		} else {
			sent = true
		}
	}
	if sent {
		return nil
	}
	return failed
}

// A network is an IPv4 network of an interface.
type network struct {
	at        net.HardwareAddr
	own       net.IP
	broadcast net.IP
}

// networks returns the networks that take broadcasts.
func networks() (list []network) {
	all, err := net.Interfaces()
	if err != nil {
		return nil
	}
	for _, i := range all {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagBroadcast == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		addresses, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
				list = append(list, network{i.HardwareAddr, n.IP.To4(), broadcastOf(n)})
			}
		}
	}
	return list
}

// broadcastOf returns the broadcast address of an IPv4 network; the general one if the network
// has none.
func broadcastOf(n *net.IPNet) net.IP {
	ones, bits := n.Mask.Size()
	if bits-ones < 2 {
		return net.IPv4bcast
	}
	own, at := n.IP.To4(), make(net.IP, net.IPv4len)
	for i := range at {
		at[i] = own[i] | ^n.Mask[len(n.Mask)-net.IPv4len+i]
	}
	return at
}

func (n network) send(packet []byte) error {
	conn, err := net.ListenPacket("udp4", net.JoinHostPort(n.own.String(), "0"))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	to, err := net.ResolveUDPAddr("udp4", net.JoinHostPort(n.broadcast.String(), strconv.Itoa(Port)))
	if err != nil {
		return err
	}
	_, err = conn.WriteTo(packet, to)
	return err
}
