package faultproxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// ownNetwork marks a process that has a network namespace of its own.
const ownNetwork = "AHP_TEST_OWN_NETWORK"

// OwnNetwork restarts this program in a network namespace of its own, where the kernel
// can drop packets for it and its children. It returns in that namespace, or with the
// reason why there is none. Call it first.
func OwnNetwork() error {
	if os.Getenv(ownNetwork) != "" {
		return nil
	}
	if os.Getuid() != 0 {
		return errors.New("a network namespace needs root")
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return err
	}
	args := append([]string{"unshare", "--net", "--", "/bin/sh", "-c"}, `ip link set lo up && exec "$0" "$@"`)
	if out, err := exec.Command(unshare, append(args[1:], "true")...).CombinedOutput(); err != nil {
		return fmt.Errorf("no network namespace here: %s", out)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	args = append(append(args, program), os.Args[1:]...)
	return syscall.Exec(unshare, args, append(os.Environ(), ownNetwork+"=1"))
}

// CanDrop reports why packets cannot be dropped here; see [OwnNetwork].
func CanDrop() error {
	if os.Getenv(ownNetwork) == "" {
		return errors.New("dropping packets needs a network namespace of one's own: root, unshare and nft")
	}
	return nil
}

// source returns an IP address of the proxy's own, by which the kernel recognizes the
// proxy's packets, or nil where none is needed.
func source() *net.TCPAddr {
	if CanDrop() != nil {
		return nil
	}
	return &net.TCPAddr{IP: net.IPv4(127, byte(1+rand.IntN(254)), byte(rand.IntN(256)), byte(1+rand.IntN(254)))}
}

// Drop makes the kernel drop packets between the proxy and its target, on new
// connections too: all packets, or a percentage. Unlike with a frozen proxy, TCP at
// both ends must notice the loss and retransmit.
func (p *Proxy) Drop(percent int) error {
	if err := CanDrop(); err != nil {
		return err
	}
	lost := "drop"
	if percent < 100 {
		lost = fmt.Sprintf("numgen random mod 100 < %d drop", percent)
	}
	table := p.table()
	err := nft(fmt.Sprintf("table ip %s {\n chain in {\n type filter hook input priority filter;\n ip saddr %s %s\n ip daddr %s %s\n }\n}\n",
		table, p.source.IP, lost, p.source.IP, lost))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropping = err == nil
	return err
}

// table returns the name of the kernel's table for the proxy.
func (p *Proxy) table() string { return "drop_" + strings.ReplaceAll(p.source.IP.String(), ".", "_") }

// deliver ends Drop.
func (p *Proxy) deliver() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.dropping {
		return nil
	}
	p.dropping = false
	return nft("delete table ip " + p.table() + "\n")
}

func nft(rules string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}
