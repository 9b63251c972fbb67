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

// A Process is a program that a test can start, kill and start again.
type Process struct {
	name    string
	netns   string // network namespace of the process; "": that of this process
	program string
	args    []string
	env     []string      // variables to add to this process's environment
	slack   time.Duration // timer slack; 0: that of this process
	log     string        // file for standard output and standard error

	mu    sync.Mutex // guards the fields below
	cmd   *exec.Cmd  // nil while the process does not run
	code  int        // code of the last exit; -1: a signal ended the process
	done  chan struct{}
	asked bool  // the process was asked to end
	wrong error // why the process ended unasked
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
	defer log.Close() // the process has its own descriptor
	cmd := exec.Command(p.program, p.args...)
	if p.netns != "" {
		cmd = exec.Command("ip", append([]string{"netns", "exec", p.netns, p.program}, p.args...)...)
	}
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := StartWithSlack(p.slack, cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.cmd, p.done, p.asked = cmd, make(chan struct{}), false
	go p.wait(cmd, p.done) // wait returns when the process ends, and the test ends the process
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

// raceReport stands at the beginning of each report by the race detector.
const raceReport = "WARNING: DATA RACE"

// verify returns an error if the process has ended unasked, or if its log has a report
// by the race detector.
func (p *Process) verify() error {
	text, err := os.ReadFile(p.log)
	if err != nil && !errors.Is(err, os.ErrNotExist) { // the file is missing if the process never started
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

// Pid returns the process's number, or 0 if it does not run. For a process in another
// network namespace, it is the number of the program that enters the namespace.
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

// stopTime limits the time that a process may take to end.
const stopTime = time.Minute

// End sends a signal to the process and waits until it has ended.
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

// ExitCode returns the code with which the process last ended; -1 means that a signal
// ended it.
func (p *Process) ExitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.code
}

// Kill kills the process and its children, even if they are stopped, and waits until
// the process has ended.
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

// Log returns the end of the process's log.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(end(text))
}

// logEnd is the number of bytes that Log returns at most.
const logEnd = 4 << 10

func end(text []byte) []byte { return text[max(0, len(text)-logEnd):] }

// A Bench makes processes with logs in one directory.
type Bench struct {
	Programs string        // directory with the programs from Build
	Dir      string        // directory for logs and state
	Env      []string      // variables that are added to the environment of new processes
	Slack    time.Duration // timer slack of new processes; 0: that of this process

	all []*Process
}

// Process returns a process for a program, which is not started. program is a name in
// Programs or an absolute path. netns is the process's network namespace; "" is that of
// this process.
func (b *Bench) Process(netns, name, program string, args ...string) *Process {
	if !filepath.IsAbs(program) {
		program = filepath.Join(b.Programs, program)
	}
	p := &Process{
		name: name, netns: netns, program: program, args: args,
		// The directories of control sockets and state are apart from this user's own.
		env: append([]string{"GORACE=halt_on_error=1 atexit_sleep_ms=0", "XDG_RUNTIME_DIR=" + b.Dir, "XDG_STATE_HOME=" + filepath.Join(b.Dir, name+".state")}, b.Env...),
		log: filepath.Join(b.Dir, name+".log"), slack: b.Slack,
	}
	b.all = append(b.all, p)
	return p
}

// Verify returns all faults so far: each process that has ended unasked, and each
// report by the race detector.
func (b *Bench) Verify() error {
	var all []error
	for _, p := range b.all {
		all = append(all, p.verify())
	}
	return errors.Join(all...)
}

// Kill kills all processes, the last process first.
func (b *Bench) Kill() {
	for i := range b.all {
		b.all[len(b.all)-1-i].Kill()
	}
}

// startTime limits the time until a process is ready.
const startTime = 60 * time.Second

// Launch starts the process, and repeats ready until it returns no error.
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
