package acp

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/test/acpagent"
)

// waiting limits how long a test waits for a message.
const waiting = 3 * time.Minute

// A client is an AHP client of a host, over a pipe.
type client struct {
	t  testing.TB
	in io.Writer

	mu     sync.Mutex
	cond   *sync.Cond
	frames []map[string]any
	read   int // number of frames that next has looked at
	id     int
	seq    int
}

// A site is a host with an agent, and a folder in which sessions work.
type site struct {
	agent  *Agent
	host   *agenthost.Host
	folder string
}

// newSite starts a host with the test's agent. change, if not nil, edits the agent's
// configuration.
func newSite(t testing.TB, options acpagent.Options, change func(*Config)) *site {
	t.Helper()
	command, environment := acpagent.Command(options)
	cfg := Config{Program: Program{Name: "test", Title: "Test", Command: command}, Environment: environment}
	ready := make(chan struct{})
	s := &site{folder: t.TempDir()}
	cfg.Changed = func() {
		<-ready
		s.host.AgentChanged("test")
	}
	if change != nil {
		change(&cfg)
	}
	s.agent = New(cfg)
	host, err := agenthost.New(agenthost.Config{
		Agents: []agenthost.Agent{s.agent}, Folders: []string{s.folder}, Terminals: agenthost.ShellTerminals, NoBypass: cfg.NoBypass, Protocol: agenthost.NewestProtocol,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	s.host = host
	close(ready)
	return s
}

// connect connects a client and initializes it.
func (s *site) connect(t testing.TB) *client {
	t.Helper()
	fromClient, in := io.Pipe()
	out, toClient := io.Pipe()
	c := &client{t: t, in: in}
	c.cond = sync.NewCond(&c.mu)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.host.ServeStdio(t.Context(), fromClient, toClient) })
	wg.Go(func() {
		dec := json.NewDecoder(out)
		for {
			var frame map[string]any
			if err := dec.Decode(&frame); err != nil {
				return
			}
			c.mu.Lock()
			c.frames = append(c.frames, frame)
			c.cond.Broadcast()
			c.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		in.Close()
		out.Close()
		wg.Wait()
	})
	c.call("initialize", map[string]any{"channel": "ahp-root://", "clientId": fmt.Sprintf("c-%p", c), "protocolVersions": []string{"0.9.0"}})
	return c
}

// next waits for a frame for which fits is true, and returns it. It skips all frames
// before it.
func (c *client) next(what string, fits func(map[string]any) bool) map[string]any {
	c.t.Helper()
	late := time.AfterFunc(waiting, c.cond.Broadcast)
	defer late.Stop()
	deadline := time.Now().Add(waiting)
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for ; c.read < len(c.frames); c.read++ {
			if frame := c.frames[c.read]; fits(frame) {
				c.read++
				return frame
			}
		}
		if !time.Now().Before(deadline) {
			c.t.Fatalf("no %s arrives within %v", what, waiting)
		}
		c.cond.Wait()
	}
}

func (c *client) send(message map[string]any) {
	c.t.Helper()
	message["jsonrpc"] = "2.0"
	line, err := json.Marshal(message)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends a request, waits for the response and returns it.
func (c *client) ask(method string, params map[string]any) map[string]any {
	c.t.Helper()
	c.id++
	c.send(map[string]any{"id": c.id, "method": method, "params": params})
	return c.next("answer to "+method, func(f map[string]any) bool { return f["id"] == float64(c.id) && f["method"] == nil })
}

// call sends a request and returns the result. An error fails the test.
func (c *client) call(method string, params map[string]any) map[string]any {
	c.t.Helper()
	answer := c.ask(method, params)
	if answer["error"] != nil {
		c.t.Fatalf("calling %s: %v; want no error", method, answer["error"])
	}
	result, _ := answer["result"].(map[string]any)
	return result
}

// A talk is a client that uses a session.
type talk struct {
	*client
	session, chat string
	turns         int
}

// begin creates a session with a configuration, and subscribes to it.
func (c *client) begin(s *site, name string, config map[string]any) *talk {
	c.t.Helper()
	session := "test:/" + name
	params := map[string]any{"channel": session, "provider": "test", "workingDirectories": []string{"file://" + s.folder}}
	if config != nil {
		params["config"] = config
	}
	c.call("createSession", params)
	return c.open(session)
}

// open subscribes to a session and its chat.
func (c *client) open(session string) *talk {
	c.t.Helper()
	state := c.state(session)
	chat, _ := state["defaultChat"].(string)
	k := &talk{client: c, session: session, chat: chat}
	c.state(k.chat)
	return k
}

// state subscribes to a channel, and returns the state in the snapshot.
func (c *client) state(channel string) map[string]any {
	c.t.Helper()
	snapshot, _ := c.call("subscribe", map[string]any{"channel": channel})["snapshot"].(map[string]any)
	state, _ := snapshot["state"].(map[string]any)
	return state
}

// awaits polls until ok returns true.
func (c *client) awaits(what string, ok func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(waiting); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("no %s within %v", what, waiting)
		}
	}
}

func (c *client) dispatch(channel string, action map[string]any) {
	c.t.Helper()
	c.seq++
	c.send(map[string]any{"method": "dispatchAction", "params": map[string]any{"channel": channel, "clientSeq": c.seq, "action": action}})
}

// prompt starts a turn with a text, and returns the turn's id.
func (k *talk) prompt(text string, attachments ...map[string]any) string {
	k.t.Helper()
	k.turns++
	turn := fmt.Sprint("t", k.turns)
	message := map[string]any{"text": text, "origin": map[string]any{"kind": "user"}}
	if attachments != nil {
		message["attachments"] = attachments
	}
	k.dispatch(k.chat, map[string]any{"type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00.000Z", "message": message})
	return turn
}

// until waits for the next action of these types on the session or its chat, and
// returns it.
func (k *talk) until(kinds ...string) map[string]any {
	k.t.Helper()
	frame := k.next(strings.Join(kinds, " or "), func(f map[string]any) bool {
		a := actionOf(f)
		channel := f["params"]
		for _, kind := range kinds {
			if a["type"] == kind {
				at := channel.(map[string]any)["channel"]
				return at == k.chat || at == k.session
			}
		}
		return false
	})
	return actionOf(frame)
}

func actionOf(frame map[string]any) map[string]any {
	params, _ := frame["params"].(map[string]any)
	action, _ := params["action"].(map[string]any)
	return action
}

// end waits for the end of a turn. It returns turnComplete, turnCancelled or error.
func (k *talk) end() string {
	k.t.Helper()
	kind, _ := k.until("chat/turnComplete", "chat/turnCancelled", "chat/error")["type"].(string)
	return strings.TrimPrefix(kind, "chat/")
}

// confirm answers a request for permission, which is the action ready, with an option.
func (k *talk) confirm(turn string, ready map[string]any, approved bool, option string) {
	k.t.Helper()
	k.dispatch(k.chat, map[string]any{
		"type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": ready["toolCallId"], "approved": approved, "confirmed": "user-action", "reason": "denied", "selectedOptionId": option,
	})
}

// asked waits for the next request for permission, and returns its action.
func (k *talk) asked() map[string]any {
	k.t.Helper()
	for {
		if ready := k.until("chat/toolCallReady"); ready["options"] != nil {
			return ready
		}
	}
}

// last returns a text with the parts of the last turn, a line for each.
func (k *talk) last() string {
	k.t.Helper()
	turns, _ := k.state(k.chat)["turns"].([]any)
	if len(turns) == 0 {
		return "no turn"
	}
	return describe(turns[len(turns)-1].(map[string]any))
}

func describe(turn map[string]any) string {
	var lines []string
	parts, _ := turn["responseParts"].([]any)
	for _, p := range parts {
		part := p.(map[string]any)
		switch call, ok := part["toolCall"].(map[string]any); {
		case ok:
			lines = append(lines, strings.TrimSpace(fmt.Sprint("tool ", call["status"], " ", call["invocationMessage"], " ", contents(call["content"]))))
		case part["kind"] == "error":
			lines = append(lines, fmt.Sprint("error: ", part["error"].(map[string]any)["message"]))
		case part["kind"] == "systemNotification":
			lines = append(lines, fmt.Sprint("notice: ", part["content"].(map[string]any)["markdown"]))
		default:
			lines = append(lines, fmt.Sprint(part["kind"], ": ", part["content"]))
		}
	}
	return strings.Join(lines, "\n")
}

func contents(content any) string {
	var list []string
	items, _ := content.([]any)
	for _, i := range items {
		item := i.(map[string]any)
		if item["text"] != nil {
			list = append(list, fmt.Sprint(item["text"]))
		} else {
			list = append(list, fmt.Sprint("<", item["type"], ">"))
		}
	}
	return strings.TrimSpace(strings.Join(list, " | "))
}
