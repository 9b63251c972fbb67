package scripted

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"ahprelay/agenthost"
)

// driveCanvas runs the prompt "canvas WORDS": it opens or uses a canvas.
func (s *script) driveCanvas(words string) error {
	said, err := s.canvasDone(strings.TrimSpace(words))
	if err != nil {
		return &agenthost.TurnError{ErrorType: "canvas", Message: err.Error()}
	}
	s.say(said)
	return nil
}

// canvasDone performs a canvas prompt and returns the agent's reply.
func (s *script) canvasDone(words string) (string, error) {
	h, session := s.host(), s.conversation.chat.Session()
	verb, rest, _ := strings.Cut(words, " ")
	if !slices.Contains(agenthost.CanvasVerbs, verb) {
		_, err := h.OpenCanvas(session, verb, nil)
		return "Opened the canvas.", err
	}
	open := h.Canvases(session)
	if len(open) == 0 {
		return "", errors.New("no canvas is open")
	}
	channel, err := open[len(open)-1], error(nil)
	switch verb {
	case "update":
		var update map[string]any
		if rest != "" && json.Unmarshal([]byte(rest), &update) != nil {
			return "", fmt.Errorf("not a JSON object: %s", rest)
		}
		err = h.UpdateCanvas(channel, update)
	case "stale":
		err = h.StaleCanvas(channel)
	case "ready":
		err = h.ReadyCanvas(channel)
	case "message":
		err = h.MessageCanvas(channel, jsonOrText(rest))
	case "invoke":
		action, input, _ := strings.Cut(rest, " ")
		value, err := h.InvokeCanvas(channel, action, jsonOrText(input))
		return "The canvas says: " + string(value), err
	case "close":
		err = h.CloseCanvas(channel)
	}
	return "Done: canvas " + verb + ".", err
}

// jsonOrText returns words as JSON if they are valid JSON, and otherwise as a
// JSON string.
func jsonOrText(words string) any {
	if json.Valid([]byte(words)) {
		return json.RawMessage(words)
	}
	return words
}

// appPattern matches other wordings of the prompt for an app.
var appPattern = regexp.MustCompile(`(?i)^\s*(please )?((show|open|give) )?(me )?(an? |the )?app\b.{0,20}$`)

// driveMCP runs the prompt "mcp WORDS": it calls a tool of an MCP server, or changes the
// server's state.
func (s *script) driveMCP(words string) error {
	verb, rest, _ := strings.Cut(strings.TrimSpace(words), " ")
	rest = strings.TrimSpace(rest)
	switch verb {
	case "tool":
		name, input, _ := strings.Cut(rest, " ")
		return s.callMCP(name, input)
	case "app":
		return s.callMCP("show_board", rest)
	}
	return s.steerMCP(verb, strings.Fields(rest))
}

// callMCP uses an MCP tool.
func (s *script) callMCP(name, input string) error {
	ok, err := s.UseMCP(name, input)
	if err != nil {
		return &agenthost.TurnError{ErrorType: "mcp", Message: err.Error()}
	}
	if ok {
		s.say("Done.")
	}
	return nil
}

// steerMCP performs a prompt about the named MCP server, or the first one.
func (s *script) steerMCP(verb string, args []string) error {
	h, session := s.host(), s.conversation.chat.Session()
	reason := ""
	if verb == "auth" && len(args) > 0 {
		reason, args = args[0], args[1:]
	}
	server := s.firstMCP()
	if len(args) > 0 {
		server = args[0]
	}
	var err error
	switch verb {
	case "auth":
		err = h.RequireMCPAuth(session, server, reason)
	case "restart":
		err = h.RestartMCP(session, server)
	case "hide", "show":
		err = h.HideMCP(session, server, verb == "hide")
	case "remove", "add":
		err = h.RemoveMCP(session, server, verb == "remove")
	default:
		err = fmt.Errorf("unknown prompt: mcp %s", verb)
	}
	if err != nil {
		return &agenthost.TurnError{ErrorType: "mcp", Message: err.Error()}
	}
	s.say("Done: mcp " + verb + ".")
	return nil
}

func (s *script) firstMCP() string {
	if servers := s.conversation.agent.servers; len(servers) > 0 {
		return servers[0].Name
	}
	return ""
}
