package loadgen

import (
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ahprelay/test/procs"
)

// These are the names of roles.
const (
	HostRole     = "Host"
	ClientsRole  = "Clients"
	WriterRole   = "Writer"
	TogetherRole = "Together" // a Writer that writes all waiting messages at once
	AgentsRole   = "Agents"
)

// RoleArg is the first argument of a process with a role. The second is the role's
// name, the third the file with the counters.
const RoleArg = "loadgen-role"

// Main runs a role if args begin with [RoleArg], and returns when standard input ends.
// ok is false if args are others. A program that calls [Start] must call Main first.
// more are roles of other packages, by name: values with methods that a [Process] can
// call by net/rpc.
func Main(args []string, more map[string]any) (ok bool, err error) {
	if len(args) != 3 || args[0] != RoleArg {
		return false, nil
	}
	counters, err := OpenCounters(args[2])
	if err != nil {
		return true, err
	}
	r, err := newRole(args[1], counters, more)
	if err != nil {
		return true, err
	}
	server := rpc.NewServer()
	if err := server.RegisterName(args[1], r); err != nil {
		return true, err
	}
	server.ServeConn(stdio{os.Stdin, os.Stdout})
	if r, ok := r.(interface{ close() }); ok {
		r.close()
	}
	return true, nil
}

func newRole(name string, counters *Counters, more map[string]any) (any, error) {
	switch name {
	case HostRole:
		return newHost(counters)
	case ClientsRole:
		return newClients(counters)
	case WriterRole:
		return newWriter(false)
	case TogetherRole:
		return newWriter(true)
	case AgentsRole:
		return newAgents(), nil
	}
	if r := more[name]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("there is no role %q", name)
}

// A stdio is a connection over two pipes.
type stdio struct {
	io.ReadCloser
	io.WriteCloser
}

func (s stdio) Close() error { return errors.Join(s.ReadCloser.Close(), s.WriteCloser.Close()) }

// A Process is another process of this program that has a role.
type Process struct {
	Name string

	cmd *exec.Cmd
	rpc *rpc.Client
	log string
}

// Start starts this program again with a role. name is the name of its log in dir. The
// file with the counters is in dir, too. With a slack of 0, the process has the timer
// slack of this process.
func Start(dir, name, roleName string, slack time.Duration) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{Name: name, log: filepath.Join(dir, name+".log")}
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the process has its own descriptor
	p.cmd = exec.Command(self, RoleArg, roleName, filepath.Join(dir, "counters"))
	p.cmd.Stderr = log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := procs.StartWithSlack(slack, p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.rpc = rpc.NewClient(stdio{out, in})
	return p, nil
}

// Pid returns the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Call calls a method of the role, such as "Host.Stream", and waits for its result.
func (p *Process) Call(method string, args, reply any) error {
	err := p.rpc.Call(method, args, reply)
	if err == nil {
		return nil
	}
	if errors.Is(err, rpc.ErrShutdown) || errors.Is(err, io.ErrUnexpectedEOF) {
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s has ended: %w\n%s", p.Name, err, text[max(0, len(text)-4<<10):])
	}
	return fmt.Errorf("%s, %s: %w", p.Name, method, err)
}

// endTime limits the time that a process may take to end.
const endTime = 10 * time.Second

// Close ends the process, and waits until it has ended.
func (p *Process) Close() {
	kill := time.AfterFunc(endTime, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.rpc.Close()
	_ = p.cmd.Wait()
}

// cpuClock selects the clock of a process that counts the user and system time of all
// its threads.
const cpuClock = 2

// CPU returns how much processor time a process has used.
func CPU(pid int) (time.Duration, error) {
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClock), &used); err != nil {
		return 0, fmt.Errorf("processor time of %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}
