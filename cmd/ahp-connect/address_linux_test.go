package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/test/natssite"
	"ahprelay/test/procs"
)

// relayAddress is the relay's address in TestChangedAddressesLoseNothing.
const relayAddress = "203.0.113.1"

// A ways is two network namespaces, for a laptop and for the relay's network. Two
// connections join them: wifi and mobile.
type ways struct {
	t             *testing.T
	laptop, relay string

	mu   sync.Mutex
	seen map[string]bool // addresses from which the laptop has reached the relay
	wg   sync.WaitGroup
}

// newWays makes the namespaces. It skips the test without root or the needed programs.
func newWays(t *testing.T) *ways {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip here")
	}
	id := fmt.Sprintf("ahp%06x-", rand.IntN(1<<24))
	w := &ways{t: t, laptop: id + "laptop", relay: id + "relay", seen: map[string]bool{}}
	for _, ns := range []string{w.laptop, w.relay} {
		if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Skipf("network namespaces cannot be made here: %s", out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	}
	w.ip(w.relay, "link set lo up")
	w.ip(w.relay, "addr add "+relayAddress+"/32 dev lo")
	for i, way := range []string{"wifi", "mobile"} {
		if out, err := exec.Command("ip", "link", "add", way, "netns", w.laptop, "type", "veth", "peer", "name", way, "netns", w.relay).CombinedOutput(); err != nil {
			t.Skipf("network devices cannot be made here: %s", out)
		}
		w.ip(w.relay, fmt.Sprintf("addr add 192.168.%d.1/24 dev %s", 70+i, way))
		w.ip(w.relay, "link set "+way+" up")
	}
	return w
}

// ip runs the command ip in a namespace.
func (w *ways) ip(ns, command string) {
	w.t.Helper()
	if out, err := exec.Command("ip", append([]string{"-n", ns}, strings.Fields(command)...)...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip -n %s %s: %v: %s", ns, command, err, out)
	}
}

// use gives the laptop an address at one of the two connections. It removes the
// laptop's address at the connection former, unless that is "". Packets for the removed
// address are lost, so TCP connections stop without an error.
func (w *ways) use(way, address, former string) {
	w.t.Helper()
	if former != "" {
		w.ip(w.laptop, "addr flush dev "+former)
		w.ip(w.laptop, "link set "+former+" down")
	}
	w.ip(w.laptop, "link set "+way+" up")
	w.ip(w.laptop, "addr add "+address+"/24 dev "+way)
	w.ip(w.laptop, "route add default via "+address[:strings.LastIndexByte(address, '.')]+".1")
}

// forward accepts connections in the relay's namespace, and forwards them to a relay in
// this process's namespace. It returns the port.
func (w *ways) forward(target string) int {
	w.t.Helper()
	var l net.Listener
	var err error
	if failed := procs.Within(w.relay, func() { l, err = net.Listen("tcp", relayAddress+":0") }); errors.Join(failed, err) != nil {
		w.t.Skipf("network namespaces cannot be entered here: %v", errors.Join(failed, err))
	}
	conns := make(chan net.Conn, 1024)
	w.wg.Go(func() {
		defer close(conns)
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(in.RemoteAddr().String())
			w.mu.Lock()
			w.seen[host] = true
			w.mu.Unlock()
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			w.wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			w.wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
			conns <- in
			conns <- out
		}
	})
	w.t.Cleanup(func() {
		_ = l.Close()
		for c := range conns {
			_ = c.Close()
		}
		w.wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

// TestChangedAddressesLoseNothing changes the laptop's address, and then its network,
// while the host sends 500 actions a second. The client of ahp-connect keeps its
// connection. No frame is lost, repeated or changed.
func TestChangedAddressesLoseNothing(t *testing.T) {
	t.Parallel()
	w := newWays(t)
	s, tokenFile := newStack(t)
	w.use("wifi", "192.168.70.10", "")
	port := w.forward(strings.TrimPrefix(s.Relay.URL(), "http://"))
	r := startRunning(t, s, []string{"ip", "netns", "exec", w.laptop}, fmt.Sprintf("http://%s:%d", relayAddress, port), tokenFile, 3000, 2, "--relay-plain")
	arrives := func(address string) {
		natssite.Eventually(t, "the relay sees "+address, func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.seen[address]
		})
	}
	arrives("192.168.70.10")
	w.use("wifi", "192.168.70.11", "wifi")
	arrives("192.168.70.11")
	time.Sleep(200 * time.Millisecond) // the next change interrupts the repetition of missed frames
	w.use("mobile", "192.168.71.10", "wifi")
	arrives("192.168.71.10")
	r.wantAll()
	select {
	case <-r.client.Done():
		code, reason := r.client.CloseStatus()
		t.Errorf("the client's connection has ended with %d %s; want it open", code, reason)
	default:
	}
}
