package bench

import (
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"

	"ahprelay/test/bench/loadgen"
	"ahprelay/test/must"
	"ahprelay/test/procs"
)

const (
	sshdProgram = "/usr/sbin/sshd"
	sshName     = "ssh -R"
)

// sshTunnel makes the testbed's host reachable by ssh -R, through a separate SSH server
// with new keys. between starts a proxy between the SSH client and the server.
// Without an SSH server on this machine, it returns nil.
func (b *testbed) sshTunnel(between func(target string) string) *system {
	if _, err := os.Stat(sshdProgram); err != nil {
		b.say("no sshd on this machine; %s is left out", sshName)
		return nil
	}
	address := must.Get(procs.FreeAddress())
	dir := filepath.Join(b.dir, "ssh")
	must.Do(os.MkdirAll(dir, 0o700))
	for _, key := range []string{"host", "client"} {
		out, err := exec.CommandContext(b.ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).CombinedOutput()
		if err != nil {
			must.Fail("ssh-keygen: %w\n%s", err, out)
		}
	}
	server := net.JoinHostPort(address, natsPort)
	b.command("sshd", server, sshdProgram, "-D", "-e", "-f", "/dev/null",
		"-o", "ListenAddress="+server, "-o", "HostKey="+filepath.Join(dir, "host"), "-o", "AuthorizedKeysFile="+filepath.Join(dir, "client.pub"),
		"-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PidFile=none", "-o", "PasswordAuthentication=no", "-o", "GatewayPorts=clientspecified")
	through := server
	if between != nil {
		through = between(server)
	}
	return b.sshClient(dir, address, through)
}

// sshClient starts the SSH client, which opens the tunnel, and returns the way through
// it.
func (b *testbed) sshClient(dir, address, through string) *system {
	me := must.Get(user.Current())
	host, port, err := net.SplitHostPort(through)
	must.Do(err)
	public := net.JoinHostPort(address, relayPort)
	pid := b.command("ssh", public, "ssh", "-N", "-F", "none", "-i", filepath.Join(dir, "client"), "-p", port,
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes",
		"-R", public+":"+strings.TrimPrefix(b.hostURL, "ws://"), me.Username+"@"+host)
	return &system{name: sshName, kind: loadgen.AHP, url: "ws://" + public, pid: pid}
}

// command starts a third-party program, and waits until an address accepts connections.
func (b *testbed) command(name, address, program string, args ...string) int {
	p := b.bench.Process("", name, must.Get(exec.LookPath(program)), args...)
	must.Do(p.Launch(b.ctx, func() error { return reachable(address) }))
	return p.Pid()
}
