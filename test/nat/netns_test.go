package nat

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"ahprelay/test/procs"
)

// These are the addresses in the namespaces.
const (
	relayForClients = "198.51.100.1"
	clientAddress   = "198.51.100.2"
	relayForRouters = "203.0.113.1"
	routerAddress   = "203.0.113.2"
	gatewayAddress  = "192.168.77.1"
	homeAddress     = "192.168.77.10"
	otherAddress    = "192.168.77.11" // home's address after the change
)

// A network is four network namespaces. Their names are unique on the machine.
type network struct {
	t                           *testing.T
	client, relay, router, home string
}

// newNetwork builds the namespaces and their connections. It skips the test without
// root or the needed programs.
func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, tool := range []string{"ip", "nft", "conntrack", "ss"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here", tool)
		}
	}
	id := fmt.Sprintf("ahp%06x-", rand.IntN(1<<24))
	n := &network{t: t, client: id + "client", relay: id + "relay", router: id + "router", home: id + "home"}
	for _, ns := range []string{n.client, n.relay, n.router, n.home} {
		if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Skipf("network namespaces cannot be made here: %s", out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
		n.in(ns, "ip link set lo up")
	}
	n.connect(n.client, clientAddress, "relay0", n.relay, relayForClients, "clients0")
	n.connect(n.relay, relayForRouters, "routers0", n.router, routerAddress, "wan0")
	n.connect(n.router, gatewayAddress, "lan0", n.home, homeAddress, "lan0")
	n.in(n.home, "ip route add default via "+gatewayAddress)
	n.in(n.relay, "ip route add 192.168.77.0/24 via "+routerAddress) // with this route the router drops the packets, and not this machine's kernel
	n.rules()
	return n
}

// connect connects two namespaces by a virtual cable, and sets the address of each end.
func (n *network) connect(a, addressA, deviceA, b, addressB, deviceB string) {
	n.t.Helper()
	n.must(exec.Command("ip", "link", "add", deviceA, "netns", a, "type", "veth", "peer", "name", deviceB, "netns", b))
	for _, end := range [][3]string{{a, addressA, deviceA}, {b, addressB, deviceB}} {
		n.in(end[0], "ip addr add "+end[1]+"/24 dev "+end[2])
		n.in(end[0], "ip link set "+end[2]+" up")
	}
}

const ruleset = `
table ip nat {
	chain post { type nat hook postrouting priority srcnat; oifname "wan0" masquerade random; }
}
table ip filter {
	chain forward {
		type filter hook forward priority filter; policy drop;
		iifname "lan0" oifname "wan0" ct state new,established accept
		iifname "wan0" oifname "lan0" ct state established accept
	}
	chain input { type filter hook input priority filter; policy drop; iifname "lan0" accept; }
}
`

// rules loads the router's rules. With them, the router drops packets for connections
// that it has forgotten.
func (n *network) rules() {
	n.t.Helper()
	cmd := exec.Command("ip", "netns", "exec", n.router, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(ruleset)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Skipf("no address translation here: %s", out)
	}
	n.in(n.router, "sysctl -qw net.ipv4.ip_forward=1")
	n.in(n.router, "sysctl -qw net.netfilter.nf_conntrack_tcp_loose=0")
}

// in runs a command in a namespace and returns its output.
func (n *network) in(ns, command string) string {
	n.t.Helper()
	return n.must(exec.Command("ip", append([]string{"netns", "exec", ns}, strings.Fields(command)...)...))
}

func (n *network) must(cmd *exec.Cmd) string {
	n.t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		n.t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return string(out)
}

// dialer returns a function that connects from inside a namespace. It accepts only
// numeric addresses.
func dialer(ns string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		enterErr := procs.Within(ns, func() { conn, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address) })
		return conn, errors.Join(enterErr, err)
	}
}
