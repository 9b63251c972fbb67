package test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
)

// A flow is a script for clients of a host. Each line is a step. $name stands for a
// variable anywhere in a line.
//
//	dial A                     A connects
//	A> {"jsonrpc": …}          A sends this frame, as it stands
//	A< answer 3                A has got the result of its request 3
//	A< error 3 -32008          … or this error
//	A< note root/sessionAdded  A has got a notification
//	A< action chat/delta 5     A has got (5 of) these actions
//	A< ask resourceRead {…}    the host has asked A, which answers with {…}
//	let chat = A 4 result.snapshot.state.defaultChat    from the answer to A's request 4
//	seq last = A               the highest serverSeq that a step of A has waited for
//	fence A                    A has got all that the host sent before now
//	drop A                     A's network is gone
//
// A step consumes the message that it waits for, so a later step waits for a later
// message. These variables are set before the first step: provider, uuid1 to uuid9,
// now, and session and chat in the form of the host's URIs.
type flow struct {
	name  string
	lines []string
}

func readFlows(t *testing.T) []flow {
	t.Helper()
	files, err := filepath.Glob("testdata/flows/*.flow")
	if err != nil || len(files) == 0 {
		t.Fatalf("no flows: %v", err)
	}
	var flows []flow
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		flows = append(flows, flow{strings.TrimSuffix(filepath.Base(file), ".flow"), strings.Split(string(data), "\n")})
	}
	return flows
}

// A dialer opens a client's connection to a host.
type dialer func(ctx context.Context, opts refclient.Options) (*refclient.Client, error)

// A player runs a single flow.
type player struct {
	t       *testing.T
	dial    dialer
	vars    map[string]string
	clients map[string]*flowClient
	order   []*flowClient
}

// A flowClient is a client of a flow. It records the frames that it sends.
type flowClient struct {
	*refclient.Client
	name  string
	sent  [][]byte
	used  map[int]bool
	fence int
}

// stepTime is the longest time that a step may wait.
const stepTime = natssite.Patience

// play runs a flow, and returns its clients in the order in which they connected. A
// step that fails ends the test.
func play(t *testing.T, f flow, dial dialer, vars map[string]string) []*flowClient {
	t.Helper()
	p := &player{t: t, dial: dial, vars: vars, clients: map[string]*flowClient{}}
	t.Cleanup(func() {
		for _, c := range p.order {
			_ = c.Abort()
		}
	})
	for i, line := range f.lines {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		err := p.step(ctx, p.expand(line))
		cancel()
		if err != nil {
			t.Fatalf("the flow %s, line %d: %s: %v%s", f.name, i+1, line, err, p.tail(line))
		}
	}
	return p.order
}

// expand replaces each $name in a line by the variable's value. If several names fit,
// the longest counts.
func (p *player) expand(line string) string {
	names := make([]string, 0, len(p.vars))
	for name := range p.vars {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return len(b) - len(a) })
	for _, name := range names {
		line = strings.ReplaceAll(line, "$"+name, p.vars[name])
	}
	return line
}

func (p *player) step(ctx context.Context, line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	if c := p.clients[strings.TrimRight(verb, "<>")]; c != nil {
		if strings.HasSuffix(verb, ">") {
			return c.send([]byte(rest))
		}
		return c.await(ctx, rest)
	}
	words := strings.Fields(rest)
	switch verb {
	case "dial":
		c, err := p.dial(ctx, refclient.Options{Unanswered: true})
		if err != nil {
			return err
		}
		fc := &flowClient{Client: c, name: words[0], used: map[int]bool{}}
		p.clients[words[0]] = fc
		p.order = append(p.order, fc)
		return nil
	case "let": // let chat = A 4 result.x
		value, err := p.clients[words[2]].field(words[3], words[4])
		p.vars[words[0]] = value
		return err
	case "seq": // seq last = A
		p.vars[words[0]] = strconv.FormatInt(p.clients[words[2]].lastSeq(), 10)
		return nil
	case "fence":
		return p.clients[words[0]].pass(ctx)
	case "drop":
		return p.clients[words[0]].Abort()
	}
	return fmt.Errorf("unknown step %q", verb)
}

func (c *flowClient) send(frame []byte) error {
	c.sent = append(c.sent, frame)
	return c.SendRaw(frame)
}

// pass sends a ping and waits for its answer, which arrives after all earlier messages
// of the host.
func (c *flowClient) pass(ctx context.Context) error {
	c.fence++
	id := fmt.Sprintf("fence-%d", c.fence)
	if err := c.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"method":"ping","params":{"channel":"ahp-root://"}}`, id)); err != nil {
		return err
	}
	return c.await(ctx, fmt.Sprintf("answer %q", id))
}

// message holds the members of a frame that steps compare.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params struct {
		Action    struct{ Type string } `json:"action"`
		ServerSeq int64                 `json:"serverSeq"`
	} `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct{ Code int }
}

// await waits for a message as described in a step. For ask, it also checks the request
// and answers it.
func (c *flowClient) await(ctx context.Context, want string) error {
	words := strings.SplitN(want, " ", 3)
	if len(words) < 2 {
		return fmt.Errorf("what is %q?", want)
	}
	count := 1
	if words[0] == "action" && len(words) == 3 {
		count, _ = strconv.Atoi(words[2])
	}
	for range count {
		frame, err := c.awaitOne(ctx, words)
		if err != nil {
			return err
		}
		if words[0] == "ask" {
			var m message
			if err := json.Unmarshal(frame, &m); err != nil {
				return err
			}
			return c.send(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, words[2]))
		}
	}
	return nil
}

func (c *flowClient) awaitOne(ctx context.Context, words []string) ([]byte, error) {
	index, found := 0, -1
	frame, err := c.WaitFor(ctx, func(frame []byte) bool {
		i := index
		index++
		if found >= 0 || c.used[i] || !fits(frame, words) {
			return false
		}
		found = i
		return true
	})
	if err == nil {
		c.used[found] = true
	}
	return frame, err
}

// fits reports whether a frame matches the words of a step.
func fits(frame []byte, words []string) bool {
	var m message
	if json.Unmarshal(frame, &m) != nil {
		return false
	}
	switch words[0] {
	case "answer":
		return m.Method == "" && m.Error == nil && string(m.ID) == words[1]
	case "error":
		return m.Method == "" && m.Error != nil && string(m.ID) == words[1] && strconv.Itoa(m.Error.Code) == words[2]
	case "note":
		return m.Method == words[1] && m.ID == nil
	case "action":
		return m.Method == "action" && m.Params.Action.Type == words[1]
	case "ask":
		return m.Method == words[1] && m.ID != nil
	}
	return false
}

// field returns a member of the answer to a request, by its dotted path.
func (c *flowClient) field(id, path string) (string, error) {
	for _, frame := range c.Frames() {
		if !fits(frame, []string{"answer", id}) {
			continue
		}
		var v any
		if err := json.Unmarshal(frame, &v); err != nil {
			return "", err
		}
		for key := range strings.SplitSeq(path, ".") {
			switch at := v.(type) {
			case map[string]any:
				v = at[key]
			case []any:
				i, err := strconv.Atoi(key)
				if err != nil || i >= len(at) {
					return "", fmt.Errorf("no %s in the answer", path)
				}
				v = at[i]
			}
		}
		return fmt.Sprint(v), nil
	}
	return "", fmt.Errorf("no answer to %s", id)
}

func (c *flowClient) lastSeq() (last int64) {
	for i, frame := range c.Frames() {
		var m message
		if c.used[i] && json.Unmarshal(frame, &m) == nil && m.Method == "action" {
			last = max(last, m.Params.ServerSeq)
		}
	}
	return last
}

// tail returns the last frames of the client that a failed line names, for the test's
// message.
func (p *player) tail(line string) string {
	name, _, _ := strings.Cut(line, "<")
	c := p.clients[name]
	if c == nil {
		return ""
	}
	var b strings.Builder
	frames := c.Frames()
	for _, frame := range frames[max(0, len(frames)-6):] {
		fmt.Fprintf(&b, "\n\t%.300s", frame)
	}
	code, reason := c.CloseStatus()
	fmt.Fprintf(&b, "\n\tclose %d %s", code, reason)
	return b.String()
}

// flowVars returns the variables that are set before a flow's first step. The salt has
// 8 digits and makes URIs different. For a host with a version other than 0.9.0, the
// environment variable AHP_VERSION must name it.
func flowVars(provider, salt string) map[string]string {
	vars := map[string]string{"provider": provider, "now": "2026-11-21T12:00:00.000Z", "version": cmp.Or(os.Getenv("AHP_VERSION"), "0.9.0")}
	for i := 1; i <= 9; i++ {
		vars["uuid"+strconv.Itoa(i)] = fmt.Sprintf("00000000-0000-4000-8000-%s%04d", salt, i)
	}
	session := provider + ":/" + vars["uuid1"]
	vars["session"] = session
	vars["chat"] = "ahp-chat://default/" + base64.RawURLEncoding.EncodeToString([]byte(session))
	return vars
}

// wantSameFrames fails unless two lists of frames are byte for byte the same.
func wantSameFrames(t *testing.T, what string, got, want [][]byte) {
	t.Helper()
	for i := range min(len(got), len(want)) {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("%s: frame %d differs:\n got %.400s\nwant %.400s", what, i, got[i], want[i])
			return
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d frames; want %d", what, len(got), len(want))
	}
}
