package acp

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"ahprelay/agenthost"
	"ahprelay/internal/acp"
	"ahprelay/internal/procgroup"
)

// Times for ending an agent.
const (
	// exitTime is how long an agent may run after its standard input has ended.
	exitTime = 2 * time.Second

	// outputTime is how long an agent's children may keep its pipes open after the
	// agent has ended.
	outputTime = time.Second
)

// A process is an agent's process with its connection. When either ends, the other
// is ended.
type process struct {
	conn *acp.Conn
	cmd  *exec.Cmd
	in   io.Closer
	out  io.Closer

	stop  chan struct{} // closed by end
	once  sync.Once
	ended chan struct{} // closed when the process is gone
	err   error         // why; set before ended is closed
}

func environment(more []string) []string { return append(agenthost.Environment(), more...) }

// start starts an agent in a directory.
func start(cfg Config, dir string, handler acp.Handler) (*process, error) {
	p, err := startCommand(cfg, cfg.Program.Command, dir, handler)
	if errors.Is(err, syscall.ENOEXEC) { // a script without #!, which a shell would run
		p, err = startCommand(cfg, append([]string{"/bin/sh"}, cfg.Program.Command...), dir, handler)
	}
	return p, err
}

func startCommand(cfg Config, command []string, dir string, handler acp.Handler) (*process, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stderr, cmd.WaitDelay = dir, environment(cfg.Environment), cfg.Stderr, outputTime
	procgroup.Own(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// StdoutPipe is not used: a child that keeps the pipe open must not delay Wait.
	out, outWriter, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	cmd.Stdout = outWriter
	err = cmd.Start()
	_ = outWriter.Close()
	if err != nil {
		_, _ = in.Close(), out.Close() // Start has closed some
		return nil, fmt.Errorf("start agent %s: %w", cfg.Program.Name, err)
	}
	p := &process{conn: acp.NewConn(out, in, handler, acp.Limits{Line: cfg.MaxLine}), cmd: cmd, in: in, out: out, stop: make(chan struct{}), ended: make(chan struct{})}
	go p.run()
	return p, nil
}

// run serves the connection until the process ends.
func (p *process) run() {
	defer close(p.ended)
	exited := make(chan struct{})
	var wg sync.WaitGroup
	var waited error
	wg.Go(func() {
		waited = p.cmd.Wait()
		close(exited)
	})
	wg.Go(func() { p.err = p.conn.Run() })
	select {
	case <-exited:
		procgroup.Kill(p.cmd) // children may keep the pipe open
		// The agent's last output is still in the pipe.
		select {
		case <-p.conn.Done():
		case <-time.After(outputTime):
		}
	case <-p.conn.Done():
	case <-p.stop:
	}
	_ = p.in.Close()
	select {
	case <-exited:
	case <-time.After(exitTime):
	}
	procgroup.Kill(p.cmd) // with the children
	_ = p.out.Close()
	p.conn.Fail(errStopped)
	wg.Wait()
	if errors.Is(p.err, io.EOF) || errors.Is(p.err, os.ErrClosed) || errors.Is(p.err, syscall.EPIPE) {
		p.err = exitError(waited)
	}
}

// Errors of a process.
var (
	errStopped = errors.New("the agent was stopped")
	errExited  = errors.New("the agent has exited")
)

// exitError describes how a process ended.
func exitError(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%w: %s (its messages are in host-agent's output)", errExited, exit.ProcessState)
	}
	return errExited
}

// end stops the process and its children, and returns when they have ended.
func (p *process) end() {
	p.once.Do(func() { close(p.stop) })
	<-p.ended
}
