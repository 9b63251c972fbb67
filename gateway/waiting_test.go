package gateway

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/remember"
	"ahprelay/broker/waiting"
	peopleapi "ahprelay/gateway/api/people"
	waitingapi "ahprelay/gateway/api/waiting"
	"ahprelay/gateway/notify"
	"ahprelay/hostagent"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/internal/sealed"
)

// A laptop is a host with a host-agent that the test starts and stops.
type laptop struct {
	t      *testing.T
	relay  *Relay
	host   *agenthost.Host
	server *httptest.Server
	at     string // the host's address for the host-agent; "": the server's
	state  string
	change func(*hostagent.Config) // changes the host-agent's configuration; nil: no change
	stop   func()
}

// online waits until the relay's registry shows the host online.
func (l *laptop) online() {
	l.t.Helper()
	await(l.t, func() bool { h, _ := l.relay.registry.Lookup("default", "laptop"); return h.State == "online" })
}

// direct returns the host's own URL, without the relay.
func (l *laptop) direct() string { return "ws" + strings.TrimPrefix(l.server.URL, "http") }

// setUpLaptop is setUp with a laptop that is online, and a client that is connected
// directly to its host.
func setUpLaptop(t *testing.T) (relay *Relay, ada *phone, laptop *laptop, near *rpcClient) {
	t.Helper()
	relay, ada = setUp(t)
	laptop = newLaptop(t, relay)
	laptop.wake()
	laptop.online()
	return relay, ada, laptop, dialHost(t, laptop.direct())
}

// newLaptop starts a laptop's host, but not its host-agent.
func newLaptop(t *testing.T, relay *Relay) *laptop {
	t.Helper()
	l := &laptop{t: t, relay: relay, state: t.TempDir(), stop: func() {}}
	var err error
	if l.host, err = scripted.New(agenthost.Config{}); err != nil {
		t.Fatal(err)
	}
	l.server = httptest.NewServer(l.host)
	t.Cleanup(func() {
		l.stop()
		_ = l.host.Close()
		l.server.Close()
	})
	return l
}

// wake starts the laptop's host-agent.
func (l *laptop) wake() {
	l.t.Helper()
	token, err := l.relay.Keys().Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		l.t.Fatal(err)
	}
	cfg := hostagent.Config{
		Relays: []string{l.relay.URL()}, Token: func() (string, error) { return token, nil }, StateDir: l.state, Notify: hostagent.NotifyAll,
		Upstream: hostagent.Upstream{URL: "ws" + strings.TrimPrefix(cmp.Or(l.at, l.server.URL), "http")},
	}
	if l.change != nil {
		l.change(&cfg)
	}
	agent, err := hostagent.New(cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	l.stop = func() {
		l.stop = func() {}
		cancel()
		if err := <-ended; err != nil {
			l.t.Error(err)
		}
	}
}

// sleep stops the host-agent, and waits until the relay's registry no longer shows the
// host online.
func (l *laptop) sleep() {
	l.t.Helper()
	l.stop()
	await(l.t, func() bool { h, _ := l.relay.registry.Lookup("default", "laptop"); return h.State != "online" })
}

// A rpcClient is a client with a connection to a host.
type rpcClient struct {
	t    *testing.T
	conn *websocket.Conn
	id   int
	seq  int
}

// dialHost connects a client to an address, and completes initialize.
func dialHost(t *testing.T, address string, protocols ...string) *rpcClient {
	t.Helper()
	conn, _, err := websocket.Dial(t.Context(), address, &websocket.DialOptions{Subprotocols: protocols})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(-1)
	t.Cleanup(func() { _ = conn.CloseNow() })
	c := &rpcClient{t: t, conn: conn}
	c.call("initialize", "ahp-root://", `,"clientId":"test-`+fmt.Sprint(time.Now().UnixNano())+`","protocolVersions":["0.9.0"],"capabilities":{}`)
	return c
}

// call sends a request, waits for its response, and returns the result. It fails the
// test if the response is an error.
func (c *rpcClient) call(method, channel, more string) json.RawMessage {
	c.t.Helper()
	c.id++
	c.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"channel":%q%s}}`, c.id, method, channel, more))
	for {
		env := c.read()
		if env.Kind == ahp.Response && string(env.ID) == fmt.Sprint(c.id) {
			if env.Error != nil {
				c.t.Fatalf("calling %s: %s; want no error", method, env.Error)
			}
			return json.RawMessage(env.Result)
		}
	}
}

func (c *rpcClient) write(message string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, []byte(message)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rpcClient) read() ahp.Envelope {
	c.t.Helper()
	_, data, err := c.conn.Read(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	env, err := ahp.Peek(data)
	if err != nil {
		c.t.Fatal(err)
	}
	return env
}

// say begins a turn in a chat, with a text.
func (c *rpcClient) say(chat, turn, text string) {
	c.t.Helper()
	c.seq++
	c.write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":%q,"clientSeq":%d,"action":{"type":"chat/turnStarted","turnId":%q,"startedAt":"2026-01-01T00:00:00Z","message":{"text":%q,"origin":{"kind":"user"}}}}}`, chat, c.seq, turn, text))
}

// chatState has the parts of a chat's state that these tests read.
type chatState struct {
	Turns []struct {
		ID      string `json:"id"`
		Message struct{ Text string }
	} `json:"turns"`
	ActiveTurn *struct {
		ID            string `json:"id"`
		ResponseParts []struct {
			ToolCall *struct {
				ToolCallID, ToolName, Status string
				ToolInput                    any
				InvocationMessage            any
			} `json:"toolCall"`
		} `json:"responseParts"`
	} `json:"activeTurn"`
	QueuedMessages []struct{ ID string } `json:"queuedMessages"`
}

// chat subscribes to a chat, and returns its state.
func (c *rpcClient) chat(uri string) (s chatState) {
	c.t.Helper()
	var got struct{ Snapshot struct{ State chatState } }
	if err := json.Unmarshal(c.call("subscribe", uri, ""), &got); err != nil {
		c.t.Fatal(err)
	}
	return got.Snapshot.State
}

// newSession creates a session, and returns the session's URI and its default chat's
// URI.
func (c *rpcClient) newSession(id string) (session, chat string) {
	c.t.Helper()
	session = "demo:/" + id
	c.call("createSession", session, `,"provider":"demo"`)
	var got struct {
		Snapshot struct{ State struct{ DefaultChat string } }
	}
	if err := json.Unmarshal(c.call("subscribe", session, ""), &got); err != nil {
		c.t.Fatal(err)
	}
	return session, got.Snapshot.State.DefaultChat
}

// A writer is a phone that leaves items for a host, with the keys for them.
type writer struct {
	*phone
	device *sealed.Device
	keys   hostagent.WaitingKeys
}

// newWriter exchanges keys between a phone and the host, which must be online.
func newWriter(p *phone) *writer {
	p.Helper()
	device, err := sealed.NewDevice()
	if err != nil {
		p.Fatal(err)
	}
	w := &writer{phone: p, device: device}
	c := dialHost(p.T, p.relay.URL()+"/ahp/laptop", "ahp", "bearer."+p.in.Token, "dpop."+p.proof("GET", "/ahp/laptop", p.in.Token))
	keys := base64.RawURLEncoding.EncodeToString(device.Identity().Bytes())
	if err := json.Unmarshal(c.call("relay/waitingKeys", "ahp-root://", fmt.Sprintf(`,"keys":%q,"name":"phone"`, keys)), &w.keys); err != nil {
		p.Fatal(err)
	}
	_ = c.conn.CloseNow()
	return w
}

// item returns an item with this content, sealed to the host and the person's devices.
// change, unless nil, modifies the item before it is signed.
func (w *writer) item(id int, version uint64, c waiting.Content, change func(*waiting.Item)) waiting.Item {
	w.Helper()
	i := waiting.Item{
		ID: fmt.Sprintf("%032x", id), Session: remember.IDOf(c.Session), Version: version, Expires: time.Now().Add(time.Hour).UnixMilli(),
		Device: w.device.Identity().Fingerprint().String(),
	}
	if change != nil {
		change(&i)
	}
	raw, err := base64.RawURLEncoding.DecodeString(w.keys.Host)
	if err != nil {
		w.Fatal(err)
	}
	to := map[sealed.Fingerprint]sealed.Key{sealed.HostFingerprint(sealed.Key(raw)): sealed.Key(raw)}
	for _, d := range w.keys.Devices {
		keys, err := waitbook.ReadKeys(d.Keys)
		if err != nil {
			w.Fatal(err)
		}
		to[keys.Fingerprint()] = keys.Key
	}
	letter, err := w.device.SealLetter(i.Head(w.keys.Tenant, "laptop", w.keys.Subject), encode(w.T, c), to)
	if err != nil {
		w.Fatal(err)
	}
	i.Letter = *letter
	return i
}

// leave leaves an item at the relay, and returns the relay's HTTP status and body.
func (w *writer) leave(i waiting.Item) (status int, said string) {
	w.Helper()
	return w.ask("PUT", "/api/hosts/laptop/waiting/"+i.ID, w.in.Token, i, nil)
}

// mustLeave leaves an item, and fails unless the relay keeps it.
func (w *writer) mustLeave(i waiting.Item) {
	w.Helper()
	if status, said := w.leave(i); status != http.StatusOK {
		w.Fatalf("leaving the item %s: HTTP %d %s; want 200", i.ID, status, said)
	}
}

// results returns the results of the writer's items by the last digit of their IDs. The
// result of an item that waits is "".
func (w *writer) results() map[string]string {
	w.Helper()
	var list struct{ Items []waitingapi.Shown }
	w.do("GET", "/api/waiting", nil, &list)
	states := map[string]string{}
	for _, s := range list.Items {
		states[s.Item.ID[31:]] = ""
		if s.Result != nil {
			states[s.Item.ID[31:]] = strings.TrimSpace(string(s.Result.State) + " " + s.Result.Why)
		}
	}
	return states
}

// awaitResults waits until no item waits. It then fails unless each result begins as
// wanted.
func (w *writer) awaitResults(want map[string]string) {
	w.Helper()
	var got map[string]string
	await(w.T, func() bool {
		got = w.results()
		for _, state := range got {
			if state == "" {
				return false
			}
		}
		return true
	})
	for id, state := range want {
		if !strings.HasPrefix(got[id], state) {
			w.Errorf("the item %s has the result %q; want %q", id, got[id], state)
		}
	}
	if len(got) != len(want) {
		w.Errorf("the results are %v; want %v", got, want)
	}
}

func message(session, chat, turn, text string) waiting.Content {
	return waiting.Content{Kind: waiting.Message, Session: session, Chat: chat, Turn: turn, Text: text}
}

// A person leaves items while the host is away. When the host returns, it gets each
// item once and in order, and the person sees each result. No file of the relay has
// readable text of an item.
func TestLeftItemsAreDeliveredOnReturn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	relay, ada := setUpWith(t, func(cfg *RelayConfig) { cfg.DataDir = dir })
	laptop := newLaptop(t, relay)
	laptop.wake()
	laptop.online()
	near := dialHost(t, laptop.direct())
	session, chat := near.newSession("00000001")
	busy, busyChat := near.newSession("00000002")
	near.say(busyChat, "turn-busy", "permission")
	await(t, func() bool { s := near.chat(busyChat); return s.ActiveTurn != nil && len(pending(s)) == 1 })
	quiet, quietChat := near.newSession("00000004")
	near.say(quietChat, "turn-over", "hello")
	await(t, func() bool { s := near.chat(quietChat); return s.ActiveTurn == nil && len(s.Turns) == 1 })
	w := newWriter(ada)
	laptop.sleep()

	call := pending(near.chat(busyChat))[0]
	approve := waiting.Content{Kind: waiting.Approve, Session: busy, Chat: busyChat, Turn: "turn-busy", Request: call.ToolCallID, Approved: true, Input: digestOf(call)}
	other := approve
	other.Input = waiting.DigestOf("a different input")
	for i, c := range []waiting.Content{
		1: message(session, chat, "turn-1", "hello unmistakable-one"),
		2: message(session, "", "turn-2", "hello two"),
		3: {Kind: waiting.Session, Session: "demo:/00000003", Provider: "demo", Turn: "turn-3", Text: "hello three"},
		4: {Kind: waiting.Stop, Session: session, Chat: chat, Turn: "turn-none"},
		5: message("demo:/missing", "", "turn-5", "hello"),
		6: other,
		7: approve,
		8: {Kind: waiting.Stop, Session: quiet, Chat: quietChat, Turn: "turn-over"},
	} {
		if i > 0 {
			w.mustLeave(w.item(i, 1, c, nil))
		}
	}
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // a temporary file may be gone
		}
		if data, err := os.ReadFile(path); err == nil && strings.Contains(string(data), "unmistakable-one") {
			t.Errorf("the file %s contains an item's text; want it encrypted", path)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	relay.Close() // the items outlive the relay
	relay, err := StartRelay(t.Context(), RelayConfig{DataDir: dir, Listen: "127.0.0.1:0", AdminListen: NoListener})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	laptop.relay, w.relay, w.nonce = relay, relay, ""
	if status, said := w.renew(); status != http.StatusOK {
		t.Fatalf("requesting a new token for the device: HTTP %d %s; want 200", status, said)
	}
	laptop.wake()
	w.awaitResults(map[string]string{
		"1": "done", "2": "done", "3": "done", "4": "late that turn is over", "5": "late the session no longer exists",
		"6": "refused the tool call is not the one", "7": "done", "8": "late",
	})
	await(t, func() bool {
		s := near.chat(chat)
		return s.ActiveTurn == nil && len(s.QueuedMessages) == 0 && len(s.Turns) == 2
	})
	if got := near.chat(chat); got.Turns[0].ID != "turn-1" || got.Turns[1].Message.Text != "hello two" {
		t.Errorf("the chat's turns are %+v; want turn-1, then hello two", got.Turns)
	}
	await(t, func() bool { s := near.chat(busyChat); return s.ActiveTurn == nil || len(pending(s)) == 0 })

	// The host-agent starts once more, and delivers no item twice.
	laptop.sleep()
	laptop.wake()
	laptop.online()
	w.mustLeave(w.item(9, 1, message(session, chat, "turn-9", "hello nine"), nil)) // left while the host is online
	await(t, func() bool { return w.results()["9"] == "done" })
	await(t, func() bool { return len(near.chat(chat).Turns) == 3 })
}

// pending returns a chat's tool calls that wait for a confirmation.
func pending(s chatState) (calls []*struct {
	ToolCallID, ToolName, Status string
	ToolInput                    any
	InvocationMessage            any
}) {
	if s.ActiveTurn == nil {
		return nil
	}
	for _, p := range s.ActiveTurn.ResponseParts {
		if p.ToolCall != nil && p.ToolCall.Status == "pending-confirmation" {
			calls = append(calls, p.ToolCall)
		}
	}
	return calls
}

func digestOf(call *struct {
	ToolCallID, ToolName, Status string
	ToolInput                    any
	InvocationMessage            any
}) string {
	plain := func(v any) string {
		if m, ok := v.(map[string]any); ok {
			v = m["markdown"]
		}
		text, _ := v.(string)
		return text
	}
	return waiting.DigestOf(call.ToolCallID, call.ToolName, plain(call.ToolInput), plain(call.InvocationMessage))
}

// A person edits and cancels items. A version that is left twice gets a conflict, with
// the current version. The host gets no cancelled or forged item, and the relay keeps
// no item that has expired. A different person sees no item. An item that the host has
// cannot be changed.
func TestLeftItemsAreEditedAndCancelled(t *testing.T) {
	t.Parallel()
	relay, ada, laptop, near := setUpLaptop(t)
	session, chat := near.newSession("00000001")
	w := newWriter(ada)
	laptop.sleep()

	w.mustLeave(w.item(1, 1, message(session, chat, "turn-1", "hello first"), nil))
	w.mustLeave(w.item(1, 2, message(session, chat, "turn-1", "hello second"), nil))
	var conflict struct {
		Error string
		Item  waitingapi.Shown
	}
	status, said := w.leave(w.item(1, 2, message(session, chat, "turn-1", "hello third"), nil))
	if err := json.Unmarshal([]byte(said), &conflict); err != nil || status != http.StatusConflict || conflict.Item.Item.Version != 2 {
		t.Errorf("a second change with the same version: HTTP %d %s; want 409 with version 2", status, said)
	}
	if content, err := w.device.OpenLetter(&conflict.Item.Item.Letter, conflict.Item.Item.Head("default", "laptop", w.keys.Subject), w.device.Identity().Verifier); err != nil || !strings.Contains(string(content), "hello second") {
		t.Errorf("the device reads %s, %v; want its second version", content, err)
	}
	w.mustLeave(w.item(2, 1, message(session, chat, "turn-2", "hello"), nil))
	w.mustLeave(w.item(2, 2, message(session, chat, "turn-2", "hello"), func(i *waiting.Item) { i.Cancelled = true }))
	if status, _ := w.ask("DELETE", "/api/hosts/laptop/waiting/"+fmt.Sprintf("%032x", 2), w.in.Token, nil, nil); status != http.StatusConflict {
		t.Errorf("removing a cancelled item before the host has confirmed it: HTTP %d; want 409", status)
	}
	forged := w.item(3, 1, message(session, chat, "turn-3", "hello"), nil)
	forged.Expires++ // changes the item after its signature
	w.mustLeave(forged)
	for name, change := range map[string]func(*waiting.Item){
		"in the past":  func(i *waiting.Item) { i.Expires = time.Now().Add(-time.Minute).UnixMilli() },
		"in ten days":  func(i *waiting.Item) { i.Expires = time.Now().Add(240 * time.Hour).UnixMilli() },
		"a late start": func(i *waiting.Item) { i.Version = 4 },
	} {
		if status, _ := w.leave(w.item(4, 1, message(session, chat, "turn-4", "hello"), change)); status == http.StatusOK {
			t.Errorf("an item %s is kept; want it refused", name)
		}
	}
	token, err := relay.Keys().Tokens().IssueClient(auth.Client{Tenant: "default", Subject: "eve", Hosts: []string{"*"}, Access: auth.AccessAdmin, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", relay.URL()+"/api/waiting", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []waitingapi.Shown }
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil || len(list.Items) != 0 {
		t.Errorf("a different person is shown the items %+v, %v; want none", list.Items, err)
	}
	_ = answer.Body.Close()

	laptop.wake()
	w.awaitResults(map[string]string{"1": "done", "2": "cancelled", "3": "refused the message is damaged"})
	await(t, func() bool { return len(near.chat(chat).Turns) == 1 })
	if got := near.chat(chat); got.Turns[0].Message.Text != "hello second" {
		t.Errorf("the host has %+v; want the second version", got.Turns)
	}
	if status, said := w.leave(w.item(1, 3, message(session, chat, "turn-1", "hello"), nil)); status != http.StatusConflict || !strings.Contains(said, "has received the item already") {
		t.Errorf("changing a delivered item: HTTP %d %s; want 409 and the reason", status, said)
	}
	w.do("DELETE", "/api/hosts/laptop/waiting/"+fmt.Sprintf("%032x", 2), nil, nil)
}

// secondDevice admits a second device of the same person.
func secondDevice(p *phone) *phone {
	p.Helper()
	other := newPhone(p.T, p.relay)
	var code peopleapi.DeviceCode
	if status, said := other.ask("POST", "/auth/device", "", url.Values{"kind": {"device"}, "name": {"tablet"}}, &code); status != http.StatusOK {
		p.Fatalf("asking for a code: HTTP %d %s; want 200", status, said)
	}
	var request peopleapi.Waiting
	p.do("GET", "/api/requests/"+strings.ToLower(code.UserCode), nil, &request)
	p.do("POST", "/api/requests/"+request.ID, map[string]any{"approve": true, "code": code.UserCode[5:]}, nil)
	poll := url.Values{"grant_type": {peopleapi.GrantDeviceCode}, "device_code": {code.DeviceCode}}
	if status, said := other.ask("POST", "/auth/token", "", poll, &other.in); status != http.StatusOK {
		p.Fatalf("polling for the credentials after the approval: HTTP %d %s; want 200", status, said)
	}
	return other
}

// A device leaves an item, and is removed while the item waits. The item is refused,
// and its person is notified.
func TestItemOfARemovedDeviceIsRefused(t *testing.T) {
	t.Parallel()
	relay, ada, laptop, near := setUpLaptop(t)
	session, chat := near.newSession("00000001")
	second := secondDevice(ada)
	w := newWriter(second)
	laptop.sleep()
	w.mustLeave(w.item(1, 1, message(session, chat, "turn-1", "hello"), nil))
	ada.do("DELETE", "/api/devices/"+second.in.Device, nil, nil)
	heard := make(chan string, 1)
	relay.server.Load().board.Subscribe(func(item notify.Item) {
		if item.Event.Kind == "undelivered" {
			heard <- item.Event.Only + ": " + item.Event.Text
		}
	})
	laptop.wake()
	(&writer{phone: ada}).awaitResults(map[string]string{"1": "refused the device that left it has been removed"})
	if got := near.chat(chat); len(got.Turns) != 0 || got.ActiveTurn != nil {
		t.Errorf("the host's chat is %+v; want no turns", got)
	}
	select {
	case got := <-heard:
		if want := ada.in.Subject + ": the device that left it has been removed"; got != want {
			t.Errorf("the notification is %q; want %q", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Error("no notification arrives within 30 s; want one")
	}
}

// A host-agent has crashed during the delivery of items: the test writes the journal
// that such a host-agent leaves. After the restart, it delivers nothing twice, and
// reports as unknown what it cannot know.
func TestCrashesRepeatNothing(t *testing.T) {
	t.Parallel()
	_, ada, laptop, near := setUpLaptop(t)
	session, chat := near.newSession("00000001")
	near.newSession("00000004")
	w := newWriter(ada)
	laptop.sleep()

	near.say(chat, "turn-2", "hello") // arrived just before the crash
	await(t, func() bool { s := near.chat(chat); return s.ActiveTurn == nil && len(s.Turns) == 1 })
	first := func(session, turn string) waiting.Content {
		return waiting.Content{Kind: waiting.Session, Session: session, Provider: "demo", Turn: turn, Text: "hello"}
	}
	for i, c := range []waiting.Content{
		1: message(session, chat, "turn-1", "hello"), 2: message(session, chat, "turn-2", "hello"),
		3: first("demo:/00000003", "turn-3"), 4: first("demo:/00000004", "turn-4"),
		5: message(session, chat, "turn-5", "hello"), 6: message(session, chat, "turn-6", "hello"), 7: message(session, chat, "turn-7", "hello"),
	} {
		if i > 0 {
			w.mustLeave(w.item(i, 1, c, nil))
		}
	}
	w.mustLeave(w.item(6, 2, message(session, chat, "turn-6", "hello again"), nil))
	w.mustLeave(w.item(7, 2, message(session, chat, "turn-7", "hello"), func(i *waiting.Item) { i.Cancelled = true }))
	book, err := waitbook.Open(laptop.state, "default", "laptop", false)
	if err != nil {
		t.Fatal(err)
	}
	over := waiting.Because(waiting.Refused, "as before")
	over.ID, over.Version = fmt.Sprintf("%032x", 5), 1
	for i, e := range map[int]waitbook.Entry{
		1: {Stage: waitbook.Sending}, 2: {Stage: waitbook.Sending}, 3: {Stage: waitbook.Creating}, 4: {Stage: waitbook.Creating},
		5: {Stage: waitbook.Over, Result: &over}, 6: {Stage: waitbook.Sending}, 7: {Stage: waitbook.Sending},
	} {
		e.Version, e.Expires = 1, time.Now().Add(time.Hour).UnixMilli()
		if err := book.Write(fmt.Sprintf("%032x", i), e, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	laptop.wake()
	w.awaitResults(map[string]string{
		"1": "unknown", "2": "done", "3": "unknown", "4": "done", "5": "refused as before", "6": "unknown", "7": "unknown",
	})
	if got := near.chat(chat); len(got.Turns) != 1 || got.ActiveTurn != nil {
		t.Errorf("the host has %+v; want only turn-2", got)
	}
}

// The host's connection ends just before or just after an item arrives. The host gets
// the item at most once.
func TestCrashOfTheHostRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, arrives := range map[string]bool{"before": false, "behind": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay, ada := setUp(t)
			laptop := newLaptop(t, relay)
			direct := laptop.direct()
			flaky := httptest.NewServer(cuts(direct, 1, "dispatchAction", arrives))
			defer flaky.Close()
			near := dialHost(t, direct)
			session, chat := near.newSession("00000001")
			laptop.at = flaky.URL
			laptop.wake()
			laptop.online()
			w := newWriter(ada)
			laptop.sleep()
			w.mustLeave(w.item(1, 1, message(session, chat, "turn-1", "hello"), nil))
			laptop.wake()
			want, turns := "unknown", 0
			if arrives {
				want, turns = "done", 1
			}
			w.awaitResults(map[string]string{"1": want})
			await(t, func() bool { s := near.chat(chat); return s.ActiveTurn == nil && len(s.Turns) == turns })
			laptop.stop()
		})
	}
}

// cuts is a proxy that passes WebSocket messages on to a host. Instead of a waiting
// item's message with the given text, it ends the connection, up to the given number of
// times. If arrives is set, it passes on that message before.
func cuts(host string, times int, text string, arrives bool) http.Handler {
	cut := make(chan bool, times)
	for range times {
		cut <- true
	}
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		in, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		defer in.CloseNow()
		out, _, err := websocket.Dial(r.Context(), host, nil)
		if err != nil {
			return
		}
		defer out.CloseNow()
		in.SetReadLimit(-1)
		out.SetReadLimit(-1)
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		go func() {
			defer cancel()
			for {
				_, data, err := out.Read(ctx)
				if err != nil || in.Write(ctx, websocket.MessageText, data) != nil {
					return
				}
			}
		}()
		waits := false
		for {
			_, data, err := in.Read(ctx)
			if err != nil {
				return
			}
			waits = waits || strings.Contains(string(data), "ahp-waiting-")
			if waits && strings.Contains(string(data), text) {
				select {
				case <-cut:
					if arrives && out.Write(ctx, websocket.MessageText, data) == nil {
						time.Sleep(200 * time.Millisecond) // the host reads it before the end of its connection
					}
					return
				default:
				}
			}
			if out.Write(ctx, websocket.MessageText, data) != nil {
				return
			}
		}
	})
}

// At an item's wake time, the relay runs the operator's command once. A person can
// leave 32 items for a host, and then a finished item makes room for a new one.
func TestItemWakesItsHostOnce(t *testing.T) {
	t.Parallel()
	marks := filepath.Join(t.TempDir(), "marks")
	relay, ada := setUpWith(t, func(cfg *RelayConfig) {
		cfg.Gateway.Wake = map[string]string{"default/laptop": "echo woken >> " + marks}
	})
	laptop := newLaptop(t, relay)
	laptop.wake()
	laptop.online()
	near := dialHost(t, laptop.direct())
	session, chat := near.newSession("00000001")
	w := newWriter(ada)
	laptop.sleep()
	w.mustLeave(w.item(1, 1, message(session, chat, "turn-1", "hello"), func(i *waiting.Item) { i.Wake = i.Expires - 1 }))
	w.mustLeave(w.item(2, 1, message(session, chat, "turn-2", "hello"), func(i *waiting.Item) { i.Wake = time.Now().UnixMilli() }))
	keeper := relay.waiting
	for range 3 {
		keeper.WakeDue()
	}
	await(t, func() bool { mark, _ := os.ReadFile(marks); return len(mark) > 0 }) // the shell creates the file before it writes
	keeper.WakeDue()
	if got, err := os.ReadFile(marks); err != nil || string(got) != "woken\n" {
		t.Errorf("the command has written %q, %v; want one line", got, err)
	}
	var list struct{ Items []waitingapi.Shown }
	w.do("GET", "/api/waiting", nil, &list)
	for _, s := range list.Items {
		if want := s.Item.ID[31:] == "2"; s.Woken != want {
			t.Errorf("item %s: Woken = %v; want %v", s.Item.ID[31:], s.Woken, want)
		}
	}
	for i := 3; i <= 32; i++ {
		w.mustLeave(w.item(i, 1, message(session, chat, fmt.Sprint("turn-", i), "hello"), nil))
	}
	if status, said := w.leave(w.item(33, 1, message(session, chat, "turn-33", "hello"), nil)); status != http.StatusInsufficientStorage {
		t.Errorf("an item beyond the bound: HTTP %d %s; want 507", status, said)
	}
	laptop.wake()
	await(t, func() bool {
		for _, state := range w.results() {
			if state == "" {
				return false
			}
		}
		return true
	})
	w.mustLeave(w.item(33, 1, message(session, chat, "turn-33", "hello"), nil))
	await(t, func() bool {
		s := near.chat(chat)
		return s.ActiveTurn == nil && len(s.QueuedMessages) == 0 && len(s.Turns) == 33
	})
}
