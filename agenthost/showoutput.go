package agenthost

import "strings"

// ShowOutput opens a terminal that shows the output of a command which the agent runs
// itself. The agent passes the output to [AgentTerminal.Write]. ShowOutput returns
// nil if there are too many terminals or the chat has ended.
func (c *Chat) ShowOutput(title string) (term *AgentTerminal) {
	c.update(func(ch *chat, h *Host) {
		h.terminals.forgetTerminalsLocked()
		params := terminalParams{Channel: terminalScheme + "//tool/" + h.cfg.NewID(), Name: titleOf(title), Claim: ch.claim("", ""), Cols: agentCols}
		t, err := h.terminals.addTerminalLocked(params, func(*terminal) (backend, error) { return shownBackend{}, nil })
		if err != nil {
			h.log.Warn("agent's output not shown", "chat", ch.uri, "error", err)
			return
		}
		t.ofAgent = true
		term = &AgentTerminal{t, maxTerminalBytes}
	})
	return term
}

// Write adds output to a terminal of [Chat.ShowOutput].
func (t *AgentTerminal) Write(data string) {
	t.shown(func() { t.terminal.dataLocked(withReturns(data)) })
}

// Exited ends a terminal of [Chat.ShowOutput].
func (t *AgentTerminal) Exited(code int) {
	t.shown(func() {
		t.terminal.exitedLocked(code)
		close(t.terminal.ended)
	})
}

// shown calls f if the terminal was opened by ShowOutput and has not ended.
func (t *AgentTerminal) shown(f func()) {
	h := t.terminal.host
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := t.terminal.backend.(shownBackend)
	if now, known := h.terminals.get(t.terminal.uri); ok && known && now == t.terminal && !h.closed && t.terminal.exitCode == nil {
		f()
	}
}

// withReturns replaces line feeds by the line ends of a terminal.
func withReturns(data string) string {
	return strings.ReplaceAll(strings.ReplaceAll(data, "\r\n", "\n"), "\n", "\r\n")
}

// A shownBackend is a terminal without a process.
type shownBackend struct{}

func (shownBackend) input(string)    {}
func (shownBackend) resize(int, int) {}
func (shownBackend) kill()           {}
func (shownBackend) interrupt()      {}
