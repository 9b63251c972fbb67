package procs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// A Process is a program that can be killed and started again.
type Process struct {
	name    string
	netns   string // network namespace to run in; "": this one
	program string
	args    []string
	env     []string      // additions to this process's environment
	slack   time.Duration // timer slack; 0: inherited
	log     string        // file for all output

	mu    sync.Mutex // guards the fields below
	cmd   *exec.Cmd  // nil while it does not run
	code  int        // of its last exit; -1: a signal ended it
	done  chan struct{}
	asked bool  // to end
	wrong error // why it ended without being asked to
}

// Start starts the program.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("%s runs already", p.name)
	}
	log, err := os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	cmd := exec.Command(p.program, p.args...)
	if p.netns != "" {
		cmd = exec.Command("ip", append([]string{"netns", "exec", p.netns, p.program}, p.args...)...)
	}
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := startWithSlack(p.slack, cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd, p.done, p.asked = cmd, make(chan struct{}), false
	go p.wait(cmd, p.done) // ends with the process, and Stop ends that
	return nil
}

func (p *Process) wait(cmd *exec.Cmd, done chan<- struct{}) {
	_ = cmd.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.code = nil, cmd.ProcessState.ExitCode()
	if !p.asked {
		p.wrong = fmt.Errorf("%s ended by itself: %v", p.name, cmd.ProcessState)
	}
	close(done)
}

// raceReport is how the race detector's reports begin.
const raceReport = "WARNING: DATA RACE"

// verify returns the fault with which the process ended, if any.
func (p *Process) verify() error {
	text, err := os.ReadFile(p.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // never started
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch at := bytes.Index(text, []byte(raceReport)); {
	case at >= 0:
		return fmt.Errorf("a data race in %s:\n%s", p.name, text[at:min(len(text), at+logEnd)])
	case p.wrong != nil:
		return fmt.Errorf("%w\n%s", p.wrong, end(text))
	}
	return nil
}

// Pid returns the process's number, or 0 if it does not run. In a separate network
// namespace, it is the number of the program that enters the namespace.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Signal sends a signal to the process, and not to its children.
func (p *Process) Signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("%s does not run; its log: %s", p.name, p.log)
	}
	if sig == syscall.SIGTERM || sig == syscall.SIGINT || sig == syscall.SIGKILL {
		p.asked = true
	}
	return p.cmd.Process.Signal(sig)
}

// stopTime is how long a process may take to end when asked to.
const stopTime = time.Minute

// End sends a signal that ends the process, and waits for the end.
func (p *Process) End(sig syscall.Signal) error {
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	if err := p.Signal(sig); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-time.After(stopTime):
		return fmt.Errorf("%s did not end within %v after %v; its log: %s", p.name, stopTime, sig, p.log)
	}
}

// ExitCode returns how the process last ended; -1 is by a signal.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code
}

// Kill kills the process and its children, stopped ones too, and waits.
func (p *Process) Kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.asked = cmd != nil
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	<-done
}

// Log returns the end of the process's output.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(end(text))
}

// logEnd is the most bytes of a log that are shown.
const logEnd = 4 << 10

func end(text []byte) []byte { return text[max(0, len(text)-logEnd):] }

// A Bench makes processes with logs in one directory.
type Bench struct {
	Programs string        // directory of what Build builds
	Dir      string        // for logs and state
	Env      []string      // additions to this process's environment, for new processes
	Slack    time.Duration // timer slack of new processes; 0: inherited

	all []*Process
}

// Process returns a process of a program in a network namespace; "" is the current
// namespace.
func (b *Bench) Process(netns, name, program string, args ...string) *Process {
	p := &Process{
		name: name, netns: netns, program: filepath.Join(b.Programs, program), args: args,
		env: append([]string{"GORACE=halt_on_error=1 atexit_sleep_ms=0", "XDG_RUNTIME_DIR=" + b.Dir}, b.Env...), // directory of control sockets, apart from this user's own
		log: filepath.Join(b.Dir, name+".log"), slack: b.Slack,
	}
	b.all = append(b.all, p)
	return p
}

// Verify returns all faults so far: processes that ended by themselves, and findings
// of the race detector.
func (b *Bench) Verify() error {
	var all []error
	for _, p := range b.all {
		all = append(all, p.verify())
	}
	return errors.Join(all...)
}

// Kill ends all processes, the last one first.
func (b *Bench) Kill() {
	for i := range b.all {
		b.all[len(b.all)-1-i].Kill()
	}
}

// startTime bounds the time until a process is ready.
const startTime = 60 * time.Second

// Launch starts a process, and returns when it is ready.
func (p *Process) Launch(ctx context.Context, ready func() error) error {
	if err := p.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		if p.Signal(0) != nil {
			return fmt.Errorf("%s has ended:\n%s", p.name, p.Log())
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("%s is not ready:\n%s", p.name, p.Log()), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
