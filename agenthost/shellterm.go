package agenthost

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"unicode/utf8"

	"github.com/creack/pty"

	"ahprelay/ahp"
	"ahprelay/internal/procgroup"
)

// A shellBackend is a process on a pseudo-terminal.
type shellBackend struct {
	// Set by startShellLocked, then read-only.
	terminal *terminal
	cmd      *exec.Cmd
	pty      *os.File
	typed    chan string // to typeLoop; bounded, never closed
	stop     chan struct{}

	killed bool // guarded by the host's lock; true: stop is closed
}

// maxTyped bounds the inputs queued for a shell.
const maxTyped = 256

func (ts *terminalTable) startShellLocked(t *terminal) (*shellBackend, error) {
	cmd := exec.Command("/bin/sh")
	cmd.Env = append(Environment(), "TERM=xterm-256color", "PS1=$ ")
	t.cwd = cmp.Or(t.cwd, ts.host.cfg.Root)
	cmd.Dir = t.cwd
	return ts.startProcessLocked(t, cmd)
}

// startProcessLocked starts a process on a pseudo-terminal, in a session of its own.
func (ts *terminalTable) startProcessLocked(t *terminal, cmd *exec.Cmd) (*shellBackend, error) {
	h := ts.host
	f, err := pty.StartWithSize(cmd, winsize(t.cols, t.rows))
	if err != nil {
		return nil, fail(ahp.CodeInternalError, "Cannot start a terminal: %v", err)
	}
	b := &shellBackend{
		terminal: t,
		cmd:      cmd,
		pty:      f,
		typed:    make(chan string, maxTyped),
		stop:     make(chan struct{}),
	}
	h.goLocked(b.showLoop)
	h.goLocked(b.typeLoop)
	return b, nil
}

func winsize(cols, rows int) *pty.Winsize {
	return &pty.Winsize{Cols: uint16(cols), Rows: uint16(rows)} // at most maxScreen
}

// showLoop publishes the shell's output until the shell exits, and then frees its
// resources.
func (b *shellBackend) showLoop() {
	h := b.terminal.host
	buf := make([]byte, 16<<10)
	kept := 0 // bytes of an incomplete character
	for {
		n, err := b.pty.Read(buf[kept:])
		n += kept
		whole := wholeCharacters(buf[:n])
		if whole > 0 {
			h.mu.Lock()
			if !b.killed {
				b.terminal.dataLocked(string(buf[:whole]))
			}
			h.mu.Unlock()
		}
		kept = copy(buf, buf[whole:n])
		if err != nil {
			break // the shell has gone, or kill has closed the terminal
		}
	}
	code := b.wait()
	defer close(b.terminal.ended)
	h.mu.Lock()
	defer h.mu.Unlock()
	if !b.killed {
		b.hangUp()
		b.terminal.exitedLocked(code)
	}
}

func (b *shellBackend) wait() int {
	err := b.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return 0
}

// wholeCharacters returns the length of data up to the end of its last complete
// character.
func wholeCharacters(data []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		tail := data[len(data)-i:]
		if utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return len(data) - i
			}
			break
		}
	}
	return len(data)
}

// typeLoop writes clients' input to the shell.
func (b *shellBackend) typeLoop() {
	for {
		select {
		case data := <-b.typed:
			if _, err := b.pty.WriteString(data); err != nil {
				return
			}
		case <-b.stop:
			return
		}
	}
}

// input queues data for the shell. If the queue is full, it drops the data, as
// terminals do, and logs that.
func (b *shellBackend) input(data string) {
	select {
	case b.typed <- data:
	default:
		b.terminal.host.log.Warn("terminal input dropped", "terminal", b.terminal.uri, "bytes", len(data))
	}
}

func (b *shellBackend) resize(cols, rows int) {
	if !b.killed {
		pty.Setsize(b.pty, winsize(cols, rows))
	}
}

func (b *shellBackend) kill() {
	if !b.killed {
		b.hangUp()
		b.cmd.Process.Kill()
	}
}

func (b *shellBackend) interrupt() {
	if !b.killed {
		procgroup.Kill(b.cmd) // its whole session
	}
}

// hangUp ends the loops and signals the shell's children.
func (b *shellBackend) hangUp() {
	b.killed = true
	close(b.stop)
	b.pty.Close() // ends Read and Write
}
