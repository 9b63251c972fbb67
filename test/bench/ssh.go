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
	"syscall"

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
	sshd, err := b.command("sshd", sshdProgram, "-D", "-e", "-f", "/dev/null",
		"-o", "ListenAddress="+server, "-o", "HostKey="+filepath.Join(dir, "host"), "-o", "AuthorizedKeysFile="+filepath.Join(dir, "client.pub"),
		"-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PidFile=none", "-o", "PasswordAuthentication=no", "-o", "GatewayPorts=clientspecified")
	if err != nil {
		return nil, err
	}
	if err := sshd.ready(b, server); err != nil {
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
	ssh, err := b.command("ssh", "ssh", "-N", "-F", "none", "-i", filepath.Join(dir, "client"), "-p", port,
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes",
		"-R", public+":"+strings.TrimPrefix(b.hostURL, "ws://"), me.Username+"@"+host)
	if err != nil {
		return nil, err
	}
	if err := ssh.ready(b, public); err != nil {
		return nil, err
	}
	return &system{name: sshName, kind: loadgen.AHP, url: "ws://" + public, pid: ssh.cmd.Process.Pid}, nil
}

// A command is a process of a third-party program.
type command struct {
	cmd  *exec.Cmd
	log  string
	done chan error
}

// command starts a program. The testbed's end stops it.
func (b *testbed) command(name, program string, args ...string) (*command, error) {
	c := &command{cmd: exec.Command(program, args...), log: filepath.Join(b.dir, name+".log"), done: make(chan error, 1)}
	log, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	c.cmd.Stdout, c.cmd.Stderr = log, log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	ended := make(chan struct{})
	go func() { // returns when the process ends, and the testbed's end stops the process
		defer close(ended)
		c.done <- c.cmd.Wait()
	}()
	b.ends = append(b.ends, func() {
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	})
	return c, nil
}

// ready waits until an address accepts connections. It fails if the program ends.
func (c *command) ready(b *testbed, address string) error {
	return await(b.ctx, func() error {
		select {
		case err := <-c.done:
			c.done <- err
			text, _ := os.ReadFile(c.log)
			return stop(fmt.Errorf("%s has ended: %w\n%s", c.cmd.Path, err, text))
		default:
			return reachable(address)
		}
	})
}
