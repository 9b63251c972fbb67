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

// ownNetwork is a variable in the environment of a process that has its own network
// namespace.
const ownNetwork = "AHP_TEST_OWN_NETWORK"

// OwnNetwork runs this program again in its own network namespace, where the kernel can
// drop packets of the program and its children. In that namespace it returns nil.
// Without permission for a namespace, it returns the reason. Call it before anything
// else.
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

// CanDrop returns why packets cannot be dropped in this process, or nil; see
// [OwnNetwork].
func CanDrop() error {
	if os.Getenv(ownNetwork) == "" {
		return errors.New("dropping packets needs a network namespace of one's own: root, unshare and nft")
	}
	return nil
}

// source returns an IP address for the proxy's connections to its target, by which the
// kernel recognizes their packets. It returns nil if packets cannot be dropped.
func source() *net.TCPAddr {
	if CanDrop() != nil {
		return nil
	}
	return &net.TCPAddr{IP: net.IPv4(127, byte(1+rand.IntN(254)), byte(rand.IntN(256)), byte(1+rand.IntN(254)))}
}

// Drop makes the kernel drop a percentage of the packets between the proxy and its
// target, 100 for all, also on new connections. Unlike on a frozen connection, TCP at
// both ends must notice the loss and send again.
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

// table returns the name of the kernel's table with the proxy's rules.
func (p *Proxy) table() string { return "drop_" + strings.ReplaceAll(p.source.IP.String(), ".", "_") }

// deliver removes what Drop has configured.
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
