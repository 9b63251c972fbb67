package wol

import (
	"net"
	"testing"
)

// TestBroadcastAddresses computes the broadcast address for networks of various sizes.
func TestBroadcastAddresses(t *testing.T) {
	t.Parallel()
	for network, want := range map[string]string{
		"192.168.77.5/24": "192.168.77.255", "10.1.2.3/8": "10.255.255.255", "172.16.5.9/20": "172.16.15.255",
		"192.168.77.5/32": "255.255.255.255", "192.168.77.5/31": "255.255.255.255", "0.0.0.0/0": "255.255.255.255",
	} {
		own, n, err := net.ParseCIDR(network)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = own
		if got := broadcastOf(n).String(); got != want {
			t.Errorf("%s: %s; want %s", network, got, want)
		}
	}
}

// TestPacketIsForAnAddressOfSixBytes checks each byte in a magic packet. Send must refuse an
// address with 2 bytes.
func TestPacketIsForAnAddressOfSixBytes(t *testing.T) {
	t.Parallel()
	at := net.HardwareAddr{1, 2, 3, 4, 5, 6}
	packet := Packet(at)
	if len(packet) != 102 {
		t.Fatalf("%d bytes; want 102", len(packet))
	}
	for i, b := range packet {
		if want := byte(0xff); i < 6 && b != want || i >= 6 && b != at[i%6] {
			t.Errorf("byte %d of the packet is %#x; want six bytes 0xff, and then the address repeated", i, b)
		}
	}
	if Send(net.HardwareAddr{1, 2}) == nil {
		t.Error("Send to an address of 2 bytes succeeds; want an error")
	}
}
