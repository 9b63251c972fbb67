package agenthost

import (
	"fmt"
	"strconv"
	"strings"
)

// An echoBackend is a terminal that echoes each line. It runs no process, so
// equal input causes equal output.
type echoBackend struct {
	terminal *terminal
	line     []rune
	commands int
}

const echoPrompt = "$ "

func (e *echoBackend) input(data string) {
	var shown strings.Builder
	for _, r := range data {
		switch {
		case r == '\r' || r == '\n':
			shown.WriteString("\r\n")
			e.terminal.dataLocked(shown.String())
			shown.Reset()
			if e.run(); e.terminal.exitCode != nil {
				return
			}
		case r == '\x7f' || r == '\b':
			if len(e.line) > 0 {
				e.line = e.line[:len(e.line)-1]
				shown.WriteString("\b \b")
			}
		case r == '\x03':
			e.line = nil
			shown.WriteString("^C\r\n" + echoPrompt)
		case r >= ' ' && len(e.line) < maxEchoLine:
			e.line = append(e.line, r)
			shown.WriteRune(r)
		}
	}
	if shown.Len() > 0 {
		e.terminal.dataLocked(shown.String())
	}
}

// maxEchoLine bounds a line, in characters.
const maxEchoLine = 4096

// run handles a complete line.
func (e *echoBackend) run() {
	line := string(e.line)
	e.line = nil
	fields := strings.Fields(line)
	if len(fields) == 0 {
		e.terminal.dataLocked(echoPrompt)
		return
	}
	e.commands++
	id := fmt.Sprintf("cmd-%d", e.commands)
	e.terminal.executedLocked(id, line, e.terminal.host.cfg.Now().UnixMilli())
	if fields[0] == "exit" {
		code := 0
		if len(fields) > 1 {
			code, _ = strconv.Atoi(fields[1]) // a text that is no number counts as 0
		}
		e.terminal.exitedLocked(code)
		return
	}
	e.terminal.dataLocked(line + "\r\n")
	e.terminal.finishedLocked(id)
	e.terminal.dataLocked(echoPrompt)
}

func (e *echoBackend) resize(int, int) {}

func (e *echoBackend) kill() {}

func (e *echoBackend) interrupt() {}
