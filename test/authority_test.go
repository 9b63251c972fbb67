package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/test/matrix"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// allowing issues a client token with the access, channels, methods and reverse
// requests of allow.
func allowing(t testing.TB, s *stack.Stack, allow auth.Client) string {
	t.Helper()
	token, err := s.Token(func(c *auth.Client) {
		c.Access, c.Channels, c.Methods, c.Reverse = allow.Access, allow.Channels, allow.Methods, allow.Reverse
	})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// dialWith connects a client with a token.
func dialWith(t testing.TB, s *stack.Stack, token string, opts refclient.Options) *refclient.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	opts.Token = token
	c, err := refclient.Dial(ctx, s.URL(stack.Host), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	return c
}

// A judgeOf sends messages of the permission matrix between a client and a scripted host,
// and finds out what the relay and the host-agent do with each.
type judgeOf struct {
	*testing.T
	client *refclient.Client
	host   *scriptedConn
	marks  int
}

// A client and a scripted host send each other every message of the permission matrix.
// Relay and host-agent must treat each message as the matrix says. Other tests cover
// the messages that open a connection, and MCP.
func TestMatrixHoldsThroughTheRelay(t *testing.T) {
	t.Parallel()
	p := newScriptedHost(t)
	s := startStack(t, stack.Config{Upstream: p.server.URL()})
	runMatrix(t, p, func(t *testing.T, allow auth.Client) *refclient.Client {
		return dialWith(t, s, allowing(t, s, allow), refclient.Options{Unanswered: true})
	})
}

// runMatrix opens a connection for each column of the matrix, sends all messages on it,
// and compares each outcome with the column's. It skips a column for which dial returns
// nil.
func runMatrix(t *testing.T, p *scriptedHost, dial func(t *testing.T, allow auth.Client) *refclient.Client) {
	t.Helper()
	rows, err := matrix.Read("../auth/gate/testdata/matrix.txt")
	if err != nil {
		t.Fatal(err)
	}
	for token, column := range matrix.Tokens {
		t.Run(column.Name, func(t *testing.T) {
			client := dial(t, column.Allow)
			if client == nil {
				return
			}
			call(t, client, "initialize", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q,"protocolVersions":["0.9.0"]}`, column.Name))
			j := &judgeOf{T: t, client: client, host: p.conn(column.Name, 0)}
			for i, row := range rows {
				message := row.Message(token, 1000+i)
				want := row.Verdicts[token]
				if want == "-" || row.Method == "initialize" || row.Method == "reconnect" || strings.Contains(message, "mcp://") {
					continue
				}
				if strings.HasPrefix(row.Method, "resource") || row.Method == "dispatchAction" { // below the level operate, a client may also use channels below those to which it is subscribed
					call(t, client, "subscribe", `{"channel":"mock:/s"}`)
				}
				judge := j.fromClient
				if row.FromHost {
					judge = j.fromHost
				}
				if got := judge(message, 1000+i); got != want && !(want == "fit" && got == "pass") {
					t.Errorf("%s: %s; want %s\n%s", row.Name(), got, want, message)
				}
			}
		})
	}
}

// fromClient sends a message from the client. It returns the outcome in the matrix's
// words: the message reached the host, was refused, was dropped, or was answered with
// an action.
func (j *judgeOf) fromClient(message string, id int) string {
	j.Helper()
	heard, seen := len(j.host.messages()), len(j.client.Frames())
	if err := j.client.SendRaw([]byte(message)); err != nil {
		j.Fatal(err)
	}
	call(j.T, j.client, "ping", `{"channel":"ahp-root://"}`) // its answer arrives after any answer to the message
	if slices.Contains(j.host.messages()[heard:], message) {
		return "pass"
	}
	for _, frame := range j.client.Frames()[seen:] {
		switch text := string(frame); {
		case strings.Contains(text, "rejectionReason"):
			return "echo"
		case strings.Contains(text, `"origin":`):
			return "settle"
		case strings.Contains(text, fmt.Sprintf(`"id":%d,"error":{"code":-32009`, id)):
			return "refuse"
		case strings.Contains(text, fmt.Sprintf(`"id":%d`, id)):
			return text
		}
	}
	return "drop"
}

// fromHost sends a message from the host. It returns the outcome in the matrix's words:
// the message reached the client, was changed, was dropped or, for a request, was
// refused.
func (j *judgeOf) fromHost(message string, id int) string {
	j.Helper()
	heard, seen := len(j.host.messages()), len(j.client.Frames())
	j.marks++
	mark := fmt.Sprintf(`{"method":"action","params":{"channel":"mock:/s","action":{"type":"mark","n":%d},"serverSeq":1}}`, j.marks)
	for _, m := range []string{message, mark} {
		if err := j.host.say(m); err != nil {
			j.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(j.Context(), stepTime)
	defer cancel()
	if _, _, err := j.client.WaitAfter(ctx, seen, func(f []byte) bool { return string(f) == mark }); err != nil {
		j.Fatalf("the host's message %s does not arrive: %v", message, err)
	}
	request := strings.Contains(message, `"id":`)
	frames := j.client.Frames()[seen:]
	switch came := slices.ContainsFunc(frames, func(f []byte) bool { return string(f) == message }); {
	case !came && len(frames) > 1:
		return "fit"
	case !came && !request:
		return "drop"
	case !came:
		return j.hostHears(heard, id)
	case !request:
		return "pass"
	}
	if err := j.client.SendRaw(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":{}}`, id)); err != nil {
		j.Fatal(err)
	}
	if j.hostHears(heard, id) == "refuse" {
		return "ask"
	}
	return "pass"
}

// hostHears waits until the host has received the response to its request. It returns
// "refuse" for error -32009, "answer" for a result, and "nothing" after stepTime.
func (j *judgeOf) hostHears(from, id int) string {
	j.Helper()
	for deadline := time.Now().Add(stepTime); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		for _, m := range j.host.messages()[from:] {
			switch {
			case strings.Contains(m, fmt.Sprintf(`"id":%d,"error":{"code":-32009`, id)):
				return "refuse"
			case strings.Contains(m, fmt.Sprintf(`"id":%d,"result"`, id)):
				return "answer"
			}
		}
	}
	return "nothing"
}

// With a token for one session, a client sees, changes and resumes that session with all
// its channels, and reaches no other session.
func TestSessionTokenReachesOneSession(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, func(c *agenthost.Config) { c.Files = map[string]string{"/secret.txt": "secret"} })
	s := startStack(t, stack.Config{Upstream: server.URL()})
	owner := join(t, throughRelay(t, s), "owner", nil)
	mine, other := flowVars("demo", "11111111"), flowVars("demo", "22222222")
	for _, vars := range []map[string]string{mine, other} {
		create(t, owner, vars)
		watch(t, owner, vars)
	}
	token := allowing(t, s, auth.Client{Access: auth.AccessWrite, Channels: []string{mine["session"]}})
	guest := dialWith(t, s, token, refclient.Options{})
	call(t, guest, "initialize", `{"channel":"ahp-root://","clientId":"guest","protocolVersions":["0.9.0"],"initialSubscriptions":["ahp-root://"]}`)
	refused := func(method, params string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		result, err := guest.Call(ctx, method, json.RawMessage(params))
		var e *refclient.RPCError
		if !errors.As(err, &e) || e.Code != ahp.CodePermissionDenied {
			t.Errorf("%s %s: %s, %v; want error -32009", method, params, result, err)
		}
	}
	call(t, guest, "subscribe", `{"channel":"`+mine["chat"]+`"}`) // only other clients have received this channel so far
	watch(t, guest, mine)
	say(t, guest, mine["chat"], 1, "stream 3 0 10")
	awaitDeltas(t, []*refclient.Client{owner, guest}, 3)

	if got := call(t, guest, "listSessions", `{"channel":"ahp-root://"}`); !bytes.Contains(got, []byte(mine["session"])) || bytes.Contains(got, []byte(other["session"])) {
		t.Errorf("listSessions returns %s; want the token's session only", got)
	}
	refused("subscribe", `{"channel":"`+other["session"]+`"}`)
	refused("subscribe", `{"channel":"`+other["chat"]+`"}`)
	refused("resourceRead", `{"channel":"ahp-root://","uri":"file:///secret.txt"}`)
	refused("disposeSession", `{"channel":"`+other["session"]+`"}`)
	refused("createTerminal", `{"channel":"agenthost-terminal:/mine"}`)

	// The guest reads the terminal that its session's agent opened.
	say(t, guest, mine["chat"], 2, "terminal")
	terminal := awaitTerminal(t, guest)
	call(t, guest, "subscribe", `{"channel":"`+terminal+`"}`)
	say(t, owner, other["chat"], 1, "terminal")
	hidden := awaitTerminalOn(t, owner, other["chat"])
	refused("subscribe", `{"channel":"`+hidden+`"}`)
	say(t, owner, other["chat"], 2, "stream 20 0 10")
	awaitDeltas(t, []*refclient.Client{owner}, 23)

	// The guest drops its connection and resumes on a new connection.
	_ = guest.Abort()
	again := dialWith(t, s, token, refclient.Options{})
	call(t, again, "reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":"guest","lastSeenServerSeq":1,"subscriptions":["ahp-root://",%q,%q,%q]}`, mine["session"], mine["chat"], terminal))
	call(t, again, "ping", `{"channel":"ahp-root://"}`)
	for _, frame := range append(guest.Frames(), again.Frames()...) {
		for _, secret := range []string{other["session"], other["chat"], hidden, "activeSessionsChanged"} {
			if bytes.Contains(frame, []byte(secret)) && !bytes.Contains(frame, []byte(`"error"`)) {
				t.Errorf("the guest received %s: %.300s; want nothing from other sessions", secret, frame)
			}
		}
	}
}

// awaitTerminal waits until a client receives an action that names a terminal, in any
// chat. It returns the terminal's channel.
func awaitTerminal(t *testing.T, c *refclient.Client) string {
	t.Helper()
	return awaitTerminalOn(t, c, "")
}

// awaitTerminalOn waits until a client receives an action in one chat that names a
// terminal. It returns the terminal's channel.
func awaitTerminalOn(t *testing.T, c *refclient.Client, chat string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	frame, err := c.WaitFor(ctx, func(f []byte) bool {
		return bytes.Contains(f, []byte(`"type":"terminal"`)) && bytes.Contains(f, []byte(chat))
	})
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(frame, []byte(`"type":"terminal","resource":"`))
	terminal, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(terminal)
}

// stateOf subscribes a client to the channels, lists the sessions and reads files. It
// returns all answers as a text, without the serverSeq of snapshots.
func stateOf(t testing.TB, c *refclient.Client, channels ...string) string {
	t.Helper()
	var all strings.Builder
	add := func(method, params string) {
		ctx, cancel := context.WithTimeout(context.Background(), stepTime)
		defer cancel()
		result, err := c.Call(ctx, method, json.RawMessage(params))
		if err != nil {
			t.Fatalf("calling %s: %v; want no error", method, err)
		}
		var value any
		if err := json.Unmarshal(result, &value); err != nil {
			t.Fatal(err)
		}
		if object, ok := value.(map[string]any); ok {
			if snapshot, ok := object["snapshot"].(map[string]any); ok {
				delete(snapshot, "fromSeq")
			}
		}
		fmt.Fprintf(&all, "%s %s: %v\n", method, params, value)
	}
	for _, channel := range channels {
		add("subscribe", `{"channel":"`+channel+`"}`)
	}
	add("listSessions", `{"channel":"ahp-root://"}`)
	add("resourceList", `{"channel":"ahp-root://","uri":"file:///dir"}`)
	add("resourceRead", `{"channel":"ahp-root://","uri":"file:///dir/a.txt"}`)
	return all.String()
}

// TestReaderChangesNothing lets a client with the level look send all kinds of messages
// in random order. The host's state must stay the same.
func TestReaderChangesNothing(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, func(c *agenthost.Config) { c.Files = map[string]string{"/dir/a.txt": "text", "/dir/b.txt": "more"} })
	s := startStack(t, stack.Config{Upstream: server.URL()})
	vars := flowVars("demo", "00000000")
	owner := join(t, throughRelay(t, s), "owner", nil)
	create(t, owner, vars)
	watch(t, owner, vars)
	say(t, owner, vars["chat"], 1, "permission") // the agent waits for permission during the whole test
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if _, err := owner.WaitFor(ctx, func(f []byte) bool { return bytes.Contains(f, []byte("session/inputNeededSet")) }); err != nil {
		t.Fatal(err)
	}
	const terminal = "agenthost-terminal:/t"
	call(t, owner, "createTerminal", `{"channel":"`+terminal+`","claim":{"kind":"client","clientId":"owner"},"name":"t"}`)
	channels := []string{"ahp-root://", vars["session"], vars["chat"], terminal}
	before := stateOf(t, owner, channels...)

	reader := dialWith(t, s, allowing(t, s, auth.Client{Access: auth.AccessRead}), refclient.Options{Unanswered: true})
	call(t, reader, "initialize", `{"channel":"ahp-root://","clientId":"reader","protocolVersions":["0.9.0"],"initialSubscriptions":["ahp-root://"],"capabilities":{"canvas":{}}}`)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 8).Draw(rt, "messages") {
			n++
			message := readerMessage(rt, n, channels)
			if err := reader.SendRaw([]byte(message)); err != nil {
				rt.Fatalf("sending %s: %v; want no error", message, err)
			}
		}
	})
	call(t, reader, "ping", `{"channel":"ahp-root://"}`)
	if after := stateOf(t, owner, channels...); after != before {
		t.Errorf("the state before the reader's requests:\n%s\nafter:\n%s\nwant the same", before, after)
	}
}

// clientMethods are the methods of the reference host, methods that only real hosts
// serve, and unknown methods.
var clientMethods = []string{
	"createSession", "disposeSession", "createChat", "disposeChat", "createTerminal", "disposeTerminal", "authenticate", "createResourceWatch",
	"resourceRequest", "resourceWrite", "resourceDelete", "resourceMkdir", "resourceMove", "resourceCopy", "canvasOpen", "canvasInvokeAction",
	"canvasClose", "invokeChangesetOperation", "runAutomation", "completions", "resolveSessionConfig", "vscode/devContainers/connect", "no/such",
	"dispatchAction", "tools/call", "DispatchAction", "subscribe", "unsubscribe", "listSessions", "resourceRead", "resourceList", "channel/ack", "ping",
}

// readerMessage returns a random request or notification on one of the channels, or on
// a channel that is unknown.
func readerMessage(rt *rapid.T, id int, channels []string) string {
	method := rapid.SampledFrom(clientMethods).Draw(rt, "method")
	channel := rapid.SampledFrom(append([]string{"demo:/new", "ahp-canvas:/1", "mcp://one"}, channels...)).Draw(rt, "channel")
	action := rapid.SampledFrom([]string{
		`{"type":"chat/turnStarted","turnId":"x","startedAt":"2026-11-21T12:00:00.000Z","message":{"text":"hello","origin":{"kind":"user"}}}`,
		`{"type":"chat/turnCancelled","turnId":"turn-1","duration":1}`,
		`{"type":"chat/toolCallConfirmed","turnId":"turn-1","toolCallId":"tool-1","approved":true,"confirmed":"user-action"}`,
		`{"type":"session/titleChanged","title":"mine"}`, `{"type":"session/activeClientSet","activeClient":{"clientId":"reader","tools":[]}}`,
		`{"type":"terminal/input","data":"rm -r *\r"}`, `{"type":"terminal/resized","cols":1,"rows":1}`, `{"type":"root/configChanged","config":{}}`,
	}).Draw(rt, "action")
	params := fmt.Sprintf(`{"channel":%q,"clientSeq":%d,"action":%s,"provider":"demo","uri":"file:///dir/a.txt","data":"changed","source":"file:///dir/a.txt",`+
		`"destination":"file:///dir/c.txt","recursive":true,"frame":1}`, channel, id, action)
	if rapid.Bool().Draw(rt, "request") {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id+1000, method, params)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":%s}`, method, params)
}

// Readers dispatch actions while the host streams to them. The relay refuses each
// action with an echo. After an echo, a reader must not receive an action with a lower
// serverSeq.
func TestEchoesAreInOrder(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	vars := flowVars("demo", "00000000")
	owner := join(t, throughRelay(t, s), "owner", nil)
	create(t, owner, vars)
	const readers, deltas, actions = 10, 3000, 60 // rejections beyond 64 are slowed
	var all []*refclient.Client
	for i := range readers {
		reader := dialWith(t, s, allowing(t, s, auth.Client{Access: auth.AccessRead}), refclient.Options{})
		call(t, reader, "initialize", fmt.Sprintf(`{"channel":"ahp-root://","clientId":"reader%d","protocolVersions":["0.9.0"]}`, i))
		watch(t, reader, vars)
		all = append(all, reader)
	}
	say(t, owner, vars["chat"], 1, fmt.Sprintf("stream %d 0 1", deltas))
	for range actions {
		for _, reader := range all {
			if _, err := reader.Dispatch(vars["chat"], map[string]any{"type": "chat/bogus"}); err != nil {
				t.Fatal(err)
			}
		}
	}
	awaitDeltas(t, all, deltas)
	for _, reader := range all {
		call(t, reader, "ping", `{"channel":"ahp-root://"}`)
		echoes, last := 0, int64(0)
		for _, frame := range reader.Frames() {
			a, ok := refclient.ReadAction(frame)
			switch {
			case !ok:
			case bytes.Contains(frame, []byte("rejectionReason")):
				echoes++
				last = max(last, a.ServerSeq)
			case a.ServerSeq <= last:
				t.Fatalf("the action %d follows an echo with serverSeq %d; want an increase", a.ServerSeq, last)
			}
		}
		if echoes != actions {
			t.Errorf("%d echoes; want %d", echoes, actions)
		}
	}
}
