package link

import "testing"

// TestBothEndsAgreeOnTheVersion calls commonWire with the version ranges of a relay and a
// host-agent, as each end does. Both must find the same version. Without a common version, both
// must agree on which side is newer.
func TestBothEndsAgreeOnTheVersion(t *testing.T) {
	for _, test := range []struct {
		name        string
		relay, host [2]int // lowest and highest version
		want        byte   // version that both must find; 0: none
		relayNewer  bool   // the relay is the newer side; only if want is 0
	}{
		{"the same", [2]int{1, 1}, [2]int{1, 1}, 1, false},
		{"a newer relay that still speaks the old one", [2]int{1, 2}, [2]int{1, 1}, 1, false},
		{"a newer host-agent that still speaks the old one", [2]int{1, 1}, [2]int{1, 2}, 1, false},
		{"both have several", [2]int{1, 4}, [2]int{3, 6}, 4, false},
		{"one within the other", [2]int{1, 9}, [2]int{3, 5}, 5, false},
		{"one version in common", [2]int{3, 5}, [2]int{5, 8}, 5, false},
		{"a relay that forgot the old one", [2]int{2, 3}, [2]int{1, 1}, 0, true},
		{"a host-agent that forgot the old one", [2]int{1, 1}, [2]int{2, 3}, 0, false},
		{"far apart", [2]int{7, 9}, [2]int{1, 2}, 0, true},
		{"the highest that fits in a packet", [2]int{1, 255}, [2]int{255, 255}, 255, false},
	} {
		v, newer := commonWire(test.relay, test.host) // at the host-agent
		if v != test.want || v == 0 && newer == test.relayNewer {
			t.Errorf("%s: commonWire at the host-agent = %d, %v; want %d, %v", test.name, v, newer, test.want, !test.relayNewer)
		}
		v, newer = commonWire(test.host, test.relay) // at the relay
		if v != test.want || v == 0 && newer != test.relayNewer {
			t.Errorf("%s: commonWire at the relay = %d, %v; want %d, %v", test.name, v, newer, test.want, test.relayNewer)
		}
	}
}
