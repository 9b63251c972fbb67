package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/procs"
)

const (
	sshdProgram = "/usr/sbin/sshd"
	sshName     = "ssh -R"
)

// errNoSSH is the error on a machine without an SSH server.
var errNoSSH = errors.New("no sshd on this machine")

// sshTunnel makes the testbed's host reachable by ssh -R, through a separate SSH server
// with new keys. between starts a proxy between the SSH client and the server.
func (b *testbed) sshTunnel(between func(target string) (string, error)) (*system, error) {
	if _, err := os.Stat(sshdProgram); err != nil {
		return nil, errNoSSH
	}
	address, err := procs.FreeAddress()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "ssh")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for _, key := range []string{"host", "client"} {
		out, err := exec.CommandContext(b.ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("ssh-keygen: %w\n%s", err, out)
		}
	}
	server := net.JoinHostPort(address, natsPort)
	if _, err := b.command("sshd", server, sshdProgram, "-D", "-e", "-f", "/dev/null",
		"-o", "ListenAddress="+server, "-o", "HostKey="+filepath.Join(dir, "host"), "-o", "AuthorizedKeysFile="+filepath.Join(dir, "client.pub"),
		"-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PidFile=none", "-o", "PasswordAuthentication=no", "-o", "GatewayPorts=clientspecified"); err != nil {
		return nil, err
	}
	through := server
	if between != nil {
		if through, err = between(server); err != nil {
			return nil, err
		}
	}
	return b.sshClient(dir, address, through)
}

// sshClient starts the SSH client, which opens the tunnel, and returns the way through
// it.
func (b *testbed) sshClient(dir, address, through string) (*system, error) {
	me, err := user.Current()
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(through)
	if err != nil {
		return nil, err
	}
	public := net.JoinHostPort(address, relayPort)
	pid, err := b.command("ssh", public, "ssh", "-N", "-F", "none", "-i", filepath.Join(dir, "client"), "-p", port,
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes",
		"-R", public+":"+strings.TrimPrefix(b.hostURL, "ws://"), me.Username+"@"+host)
	return &system{name: sshName, kind: loadgen.AHP, url: "ws://" + public, pid: pid}, err
}

// command starts a third-party program, and waits until an address accepts connections.
func (b *testbed) command(name, address, program string, args ...string) (pid int, err error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return 0, err
	}
	p := b.bench.Process("", name, path, args...)
	err = p.Launch(b.ctx, func() error { return reachable(address) })
	return p.Pid(), err
}
