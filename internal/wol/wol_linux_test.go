package wol

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// role is the environment variable that makes a copy of this program play a part (listen, send or
// addresses) in a network namespace.
const role = "AHP_TEST_WOL"

// TestMain runs the tests, or plays the part in the variable role.
func TestMain(m *testing.M) {
	switch part, at, _ := strings.Cut(os.Getenv(role), " "); part {
	case "":
		os.Exit(m.Run())
	case "listen":
		exit(listen(at))
	case "send":
		mac, err := net.ParseMAC(at)
		if err == nil {
			err = Send(mac)
		}
		exit(err)
	case "addresses":
		fmt.Println(strings.Join(Addresses(8), ","))
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// listen waits for the magic packet for the hardware address at. It returns an error for a
// different packet, or after a minute.
func listen(at string) error {
	mac, err := net.ParseMAC(at)
	if err != nil {
		return err
	}
	conn, err := net.ListenPacket("udp4", fmt.Sprintf(":%d", Port))
	if err != nil {
		return err
	}
	fmt.Println("listening")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, 200)
	n, from, err := conn.ReadFrom(buf)
	if err != nil {
		return err
	}
	if !bytes.Equal(buf[:n], Packet(mac)) {
		return fmt.Errorf("from %s: %x", from, buf[:n])
	}
	fmt.Println("woken")
	return nil
}

// A lan is a network between two network namespaces.
type lan struct {
	t            *testing.T
	desk, laptop string
}

func newLAN(t *testing.T) *lan {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip here")
	}
	id := fmt.Sprintf("ahp%06x", rand.IntN(1<<24))
	l := &lan{t, id + "d", id + "l"}
	for _, ns := range []string{l.desk, l.laptop} {
		if out, err := exec.Command("ip", "netns", "add", ns).CombinedOutput(); err != nil {
			t.Skipf("network namespaces cannot be made here: %s", out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	}
	for _, args := range []string{
		"-n " + l.desk + " link add lan0 type veth peer name lan0 netns " + l.laptop,
		"-n " + l.desk + " addr add 192.168.77.5/24 dev lan0",
		"-n " + l.laptop + " addr add 192.168.77.10/24 dev lan0",
		"-n " + l.desk + " link set lan0 up",
		"-n " + l.laptop + " link set lan0 up",
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %s", args, out)
		}
	}
	return l
}

// plays returns a command that plays a part in the namespace ns.
func (l *lan) plays(ns, part string) *exec.Cmd {
	cmd := exec.CommandContext(l.t.Context(), "ip", "netns", "exec", ns, os.Args[0])
	cmd.Env = append(os.Environ(), role+"="+part)
	return cmd
}

// TestMagicPacketReachesTheNetwork asks a machine for its hardware addresses, and sends the magic
// packet for them from another machine on the same network. The first machine must receive it.
func TestMagicPacketReachesTheNetwork(t *testing.T) {
	t.Parallel()
	l := newLAN(t)
	out, err := l.plays(l.laptop, "addresses").Output()
	at := strings.TrimSpace(string(out))
	if _, bad := net.ParseMAC(at); err != nil || bad != nil {
		t.Fatalf("the machine's addresses are %q: %v; want one hardware address", at, err)
	}
	listener := l.plays(l.laptop, "listen "+at)
	var said bytes.Buffer
	listener.Stderr = &said
	from, err := listener.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("listening\n"))
	if _, err := from.Read(first); err != nil {
		t.Fatalf("reading the listener's first line: %v %s; want listening", err, said.String())
	}
	if out, err := l.plays(l.desk, "send "+at).CombinedOutput(); err != nil {
		t.Fatalf("sending the packet: %v %s; want no error", err, out)
	}
	if err := listener.Wait(); err != nil {
		t.Errorf("the machine received no packet: %v %s", err, said.String())
	}
}

// TestNoNetworkIsAnError calls Send on a machine without a network. It must return errNoNetwork.
func TestNoNetworkIsAnError(t *testing.T) {
	t.Parallel()
	l := newLAN(t)
	if out, err := exec.Command("ip", "-n", l.desk, "link", "del", "lan0").CombinedOutput(); err != nil {
		t.Fatalf("removing the network interface: %s; want no error", out)
	}
	out, err := l.plays(l.desk, "send 02:00:5e:00:53:01").CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || !strings.Contains(string(out), errNoNetwork.Error()) {
		t.Errorf("send without a network: %v %s; want errNoNetwork", err, out)
	}
}
