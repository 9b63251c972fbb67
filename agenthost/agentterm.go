package agenthost

import (
	"context"
	"os/exec"
	"strings"
)

// An AgentTerminal is a terminal that an agent has opened.
type AgentTerminal struct {
	terminal *terminal
	limit    int
}

// agentCols is the number of columns of an agent's terminal.
const agentCols = 120

// openAgentTerminalLocked runs an agent's command in a new terminal. Without
// Args, a Command in shell syntax runs in /bin/sh.
func (ts *terminalTable) openAgentTerminalLocked(ch *chat, spec ProcessSpec, folder string) (*AgentTerminal, error) {
	ts.forgetTerminalsLocked()
	params := terminalParams{Channel: terminalScheme + "//tool/" + ts.host.cfg.NewID(), Name: commandLine(spec), Claim: ch.claim("", ""), Cwd: folder, Cols: agentCols}
	t, err := ts.addTerminalLocked(params, func(t *terminal) (backend, error) {
		cmd := exec.Command(spec.Command, spec.Args...)
		if len(spec.Args) == 0 && strings.ContainsAny(spec.Command, " |&;<>$") {
			cmd = exec.Command("/bin/sh", "-c", spec.Command)
		}
		cmd.Env = append(Environment(), "TERM=xterm-256color")
		cmd.Env = append(cmd.Env, spec.Env...)
		cmd.Dir = folder
		return ts.startProcessLocked(t, cmd)
	})
	if err != nil {
		return nil, err
	}
	t.ofAgent = true
	limit := spec.Limit
	if limit <= 0 || limit > maxTerminalBytes {
		limit = maxTerminalBytes
	}
	return &AgentTerminal{t, limit}, nil
}

func commandLine(spec ProcessSpec) string {
	return titleOf(strings.Join(append([]string{spec.Command}, spec.Args...), " "))
}

// forgetTerminalsLocked removes the oldest terminals of agents whose
// commands have ended, until there is room for one terminal.
func (ts *terminalTable) forgetTerminalsLocked() {
	for _, t := range ts.all() {
		if len(ts.keys) < maxTerminals {
			return
		}
		if t.ofAgent && t.exitCode != nil {
			ts.remove(t.uri)
		}
	}
}

// ID is the terminal's channel.
func (t *AgentTerminal) ID() string { return t.terminal.uri }

func (t *AgentTerminal) title() string { return t.terminal.title }

// Output returns the output so far, and whether its beginning was dropped. While the
// command runs, exit is nil; afterwards it is the exit code.
func (t *AgentTerminal) Output() (text string, truncated bool, exit *int) {
	h := t.terminal.host
	h.mu.Lock()
	defer h.mu.Unlock()
	text, truncated = t.outputLocked()
	return text, truncated, t.terminal.exitCode
}

func (t *AgentTerminal) outputLocked() (text string, truncated bool) {
	var all strings.Builder
	for _, part := range t.terminal.content {
		if part.Value != nil {
			all.WriteString(*part.Value)
		}
	}
	text = strings.ReplaceAll(all.String(), "\r\n", "\n")
	if len(text) > t.limit {
		return strings.ToValidUTF8(text[len(text)-t.limit:], ""), true
	}
	return text, t.terminal.trimmed
}

// Wait waits for the command's end, and returns its exit code.
func (t *AgentTerminal) Wait(ctx context.Context) (int, error) {
	select {
	case <-t.terminal.ended:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	_, _, exit := t.Output()
	if exit == nil {
		return 0, ErrEnded // a client has closed the terminal
	}
	return *exit, nil
}

// Kill ends the command. The terminal remains, with its output.
func (t *AgentTerminal) Kill() {
	h := t.terminal.host
	h.mu.Lock()
	defer h.mu.Unlock()
	t.terminal.backend.interrupt()
}
