package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/gateway"
	notifyapi "ahprelay/gateway/api/notify"
	"ahprelay/gateway/notify"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
	"ahprelay/test/pushsite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A told is an event from the event stream /api/events.
type told struct {
	ID    string // id of the event in the stream
	Event string
	Data  struct {
		notice.Event
		Host     string `json:"host"`
		NeedsYou bool   `json:"needsYou"`
		Digest   string `json:"digest"`
	}
}

// A follower reads the event stream /api/events.
type follower struct {
	t      *testing.T
	status int
	told   chan told // received events; closed when the stream ends
}

// follow opens a stack's event stream with a token that change edits, behind the event
// with the id after. It returns when the relay has answered.
func follow(t *testing.T, s *stack.Stack, after string, change func(*auth.Client)) *follower {
	t.Helper()
	token, err := s.Token(change)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Relay.URL()+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Last-Event-ID", after)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, status: response.StatusCode, told: make(chan told, 100)}
	go func() {
		defer response.Body.Close()
		defer close(f.told)
		var one told
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), ": ")
			switch name {
			case "id":
				one.ID = value
			case "event":
				one.Event = value
			case "data":
				if err := json.Unmarshal([]byte(value), &one.Data); err != nil {
					t.Errorf("reading the event's data %s: %v; want JSON", value, err)
				}
				f.told <- one
				one = told{}
			}
		}
	}()
	return f
}

// next waits for the next event and returns it.
func (f *follower) next() told {
	f.t.Helper()
	select {
	case one, ok := <-f.told:
		if !ok {
			f.t.Fatal("the event stream has ended; want a further event")
		}
		return one
	case <-time.After(stepTime):
		f.t.Fatal("no event arrives in time; want one")
	}
	return told{}
}

func (f *follower) want(event string, kind notice.Kind) told {
	f.t.Helper()
	one := f.next()
	if one.Event != event || one.Data.Kind != kind || one.Data.Host != stack.Host {
		f.t.Fatalf("the event stream tells %+v; want %s of %s", one, event, kind)
	}
	return one
}

// startNotifying starts a stack with a host-agent that reports every kind of event.
func startNotifying(t *testing.T, protocol agenthost.Protocol, relay gateway.RelayConfig) *stack.Stack {
	t.Helper()
	_, server := newRefhost(t, func(cfg *agenthost.Config) { cfg.Protocol = protocol })
	return startStack(t, stack.Config{Upstream: server.URL(), Relay: relay, Agent: hostagent.Config{Notify: hostagent.NotifyAll}})
}

// ask creates a session and starts a turn whose tool needs permission. It returns the
// session's chat.
func ask(t *testing.T, c *refclient.Client, session, turn string) (chat string) {
	t.Helper()
	provider, _, _ := strings.Cut(session, ":")
	call(t, c, "createSession", `{"channel":"`+session+`","provider":"`+provider+`"}`)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	snapshot, err := c.Subscribe(ctx, session)
	if err != nil {
		t.Fatal(err)
	}
	var state struct{ DefaultChat string }
	if err := json.Unmarshal(snapshot.State, &state); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(ctx, state.DefaultChat); err != nil {
		t.Fatal(err)
	}
	begin(t, c, state.DefaultChat, turn, "permission")
	return state.DefaultChat
}

func begin(t *testing.T, c *refclient.Client, chat, turn, prompt string) {
	t.Helper()
	if _, err := c.Dispatch(chat, map[string]any{
		"type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-11-22T00:00:00.000Z", "message": map[string]any{"text": prompt, "origin": map[string]any{"kind": "user"}},
	}); err != nil {
		t.Fatal(err)
	}
}

func allow(t *testing.T, c *refclient.Client, chat, turn string) {
	t.Helper()
	if _, err := c.Dispatch(chat, map[string]any{
		"type": "chat/toolCallConfirmed", "turnId": turn, "toolCallId": "tc-perm", "approved": true, "confirmed": "user-action",
	}); err != nil {
		t.Fatal(err)
	}
}

// An agent asks for permission and gets an answer. Everybody with a token for the
// session receives each event once and in order, even after a break of the stream.
// Others receive nothing.
func TestEventsReachPermittedPeopleOnce(t *testing.T) {
	t.Parallel()
	s := startNotifying(t, agenthost.Protocol10, gateway.RelayConfig{})
	c := join(t, throughRelay(t, s), "user", nil)
	all := follow(t, s, "", nil)
	one := follow(t, s, "", func(c *auth.Client) { c.Channels, c.Access = []string{"demo:/two*"}, auth.AccessRead })
	elsewhere := follow(t, s, "", func(c *auth.Client) { c.Hosts = []string{"other"} })
	stranger := follow(t, s, "", func(c *auth.Client) { c.Tenant = "other" })
	noList := follow(t, s, "", func(c *auth.Client) { c.Methods = []string{"subscribe"} })

	chat := ask(t, c, "demo:/one", "t1")
	asked := all.want("event", notice.Approval)
	if asked.Data.Session != "demo:/one" || asked.Data.Detail != "echo test" || !asked.Data.NeedsYou {
		t.Errorf("the event stream tells %+v; want what is asked in demo:/one", asked.Data)
	}
	// A follower without a last event receives the open events. A follower with a last
	// event receives all events after it.
	if now := follow(t, s, "", nil).want("event", notice.Approval); now.Data.ID != asked.Data.ID {
		t.Errorf("the event stream tells of %s; want %s", now.Data.ID, asked.Data.ID)
	}
	allow(t, c, chat, "t1")
	gone := all.want("withdrawn", notice.Approval)
	if gone.Data.ID != asked.Data.ID {
		t.Errorf("withdrawn is %s; want %s", gone.Data.ID, asked.Data.ID)
	}
	all.want("event", notice.Done)
	again := follow(t, s, asked.ID, nil)
	if got := again.want("withdrawn", notice.Approval); got.ID != gone.ID {
		t.Errorf("the stream goes on with %s; want %s", got.ID, gone.ID)
	}
	again.want("event", notice.Done)

	guest, err := s.Token(func(c *auth.Client) {
		c.Subject, c.Channels, c.Access = "guest", []string{"demo:/one"}, auth.AccessRead
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second visit brings no second event
		visitor := join(t, func(ctx context.Context, opts refclient.Options) (*refclient.Client, error) {
			opts.Token = guest
			return refclient.Dial(ctx, s.URL(stack.Host), opts)
		}, "guest", nil)
		_ = visitor.Abort()
	}
	if got := all.want("event", notice.Joined); got.Data.Text != "guest" || got.Data.Session != "demo:/one" {
		t.Errorf("the event stream tells %+v; want that a guest came to demo:/one", got.Data)
	}

	ask(t, c, "demo:/two", "t2")
	if got := one.want("event", notice.Approval); got.Data.Session != "demo:/two" {
		t.Errorf("a person who may see demo:/two only got an event from %s; want demo:/two", got.Data.Session)
	}
	all.want("event", notice.Approval)
	for name, f := range map[string]*follower{"another host": elsewhere, "another tenant": stranger, "no list": noList} {
		if f.status != http.StatusOK || len(f.told) > 0 {
			t.Errorf("%s: HTTP %d, %d events; want none", name, f.status, len(f.told))
		}
	}
}

// The relay restarts while a question is open. The new relay must report the same
// question, and no question that has ended.
func TestEventsSurviveARelay(t *testing.T) {
	t.Parallel()
	s := startNotifying(t, agenthost.Protocol09, gateway.RelayConfig{Listen: natssite.FreePort(t)})
	c := join(t, throughRelay(t, s), "user", nil)
	asked := func() told {
		all := follow(t, s, "", nil)
		return all.want("event", notice.Approval)
	}
	ask(t, c, "demo:/one", "t1")
	before := asked()
	s.Relay.Close()
	if err := s.StartRelay(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "online")
	if after := asked(); after.Data.ID != before.Data.ID || after.ID == before.ID {
		t.Errorf("after a restart the relay tells %+v; want %s with another number", after, before.Data.ID)
	}
}

// The owner turns notifications off. Nobody receives events, and the host-agent opens
// no connection of its own to the host.
func TestNotificationsCanBeOff(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	conns := map[hostagent.Notify]int{}
	for _, level := range []hostagent.Notify{hostagent.NotifyOff, hostagent.NotifyNeeds} {
		s := startStack(t, stack.Config{Upstream: server.URL(), Agent: hostagent.Config{Notify: level}})
		c := join(t, throughRelay(t, s), "user", nil)
		f := follow(t, s, "", nil)
		chat := ask(t, c, "demo:/"+string(level), "t1")
		awaitFrame(t, c, "chat/toolCallReady")
		if level == hostagent.NotifyNeeds {
			f.want("event", notice.Approval)
		}
		allow(t, c, chat, "t1")
		if level == hostagent.NotifyNeeds {
			f.want("withdrawn", notice.Approval)
		}
		awaitFrame(t, c, `"turnId":"t1"`, "chat/turnComplete")
		conns[level] = len(s.Tap.Conns())
		if len(f.told) > 0 {
			t.Errorf("--notify %s: the stream got %+v; want no event", level, <-f.told)
		}
		s.Close()
	}
	if conns[hostagent.NotifyNeeds] != conns[hostagent.NotifyOff]+1 {
		t.Errorf("connections at the host: %v; want one more", conns)
	}
}

// awaitFrame waits until a client has received a frame that contains all texts.
func awaitFrame(t *testing.T, c *refclient.Client, texts ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if _, err := c.WaitFor(ctx, func(frame []byte) bool {
		for _, text := range texts {
			if !bytes.Contains(frame, []byte(text)) {
				return false
			}
		}
		return true
	}); err != nil {
		t.Fatalf("no frame with %q arrives: %v", texts, err)
	}
}

// api sends a request to the relay's API with a token that change edits. It returns the
// decoded response and the status.
func api[T any](t *testing.T, s *stack.Stack, method, path string, body any, change func(*auth.Client)) (answer T, status int) {
	t.Helper()
	token, err := s.Token(change)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.Relay.URL()+path, bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			t.Fatalf("%s %s: HTTP %d, %v", method, path, response.StatusCode, err)
		}
	}
	return answer, response.StatusCode
}

// onLoopback returns a relay configuration that permits notification targets on this
// machine.
func onLoopback() gateway.RelayConfig {
	return gateway.RelayConfig{Notify: gateway.NotifyConfig{Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
}

// subscribe registers a browser's push subscription as a notification target, and
// returns the target.
func subscribe(t *testing.T, s *stack.Stack, service *pushsite.Service, details bool, change func(*auth.Client)) notify.Target {
	t.Helper()
	eventually(t, "the relays' store has a key for push services", func() bool {
		settings, _ := api[notifyapi.Notifying](t, s, "GET", "/api/notify", nil, change)
		if settings.PushKey != "" {
			service.Subscribed(settings.PushKey)
		}
		return settings.PushKey != ""
	})
	way, status := api[notify.Target](t, s, "POST", "/api/notify/ways", service.Target(details), change)
	if status != http.StatusOK {
		t.Fatalf("POST /api/notify/ways: HTTP %d; want 200", status)
	}
	return way
}

// An agent asks for permission while no page is open. The push service receives the
// question and its end, encrypted for the browser. The API shows the target without
// secrets. A browser with a token for another session receives nothing.
func TestPushIsEncryptedForTheBrowser(t *testing.T) {
	t.Parallel()
	s := startNotifying(t, agenthost.Protocol10, onLoopback())
	c := join(t, throughRelay(t, s), "user", nil)
	service, other := pushsite.New(t), pushsite.New(t)
	way := subscribe(t, s, service, false, nil)
	subscribe(t, s, other, true, func(c *auth.Client) { c.Subject, c.Channels, c.Access = "eve", []string{"demo:/two"}, auth.AccessRead })
	if tried, _ := api[notify.Delivery](t, s, "POST", "/api/notify/ways/"+way.ID+"/test", nil, nil); tried.Outcome != "ok" {
		t.Errorf("the test of the subscription is %+v; want ok", tried)
	}
	if p := service.Next(); p.Kind != notice.Test {
		t.Errorf("the push is %+v; want a test", p)
	}
	if _, status := api[map[string]string](t, s, "POST", "/api/notify/ways/"+way.ID+"/test", nil, func(c *auth.Client) { c.Subject = "eve" }); status != http.StatusNotFound {
		t.Errorf("test of another's way: HTTP %d; want 404", status)
	}

	chat := ask(t, c, "demo:/one", "t1")
	p := service.Next()
	if p.Kind != notice.Approval || p.Host != stack.Host || p.Session != "demo:/one" || p.Detail != "" || p.Urgency != "high" || p.Withdrawn {
		t.Errorf("the push is %+v; want that demo:/one needs an approval, and no more", p)
	}
	allow(t, c, chat, "t1")
	end, done := service.Next(), service.Next()
	if done.Withdrawn { // the two events may arrive in any order
		end, done = done, end
	}
	if !end.Withdrawn || end.ID != p.ID || end.Topic != p.Topic || done.Kind != notice.Done {
		t.Errorf("the pushes are %+v and %+v; want that %s is withdrawn, and the turn done", end, done, p.ID)
	}
	var settings notifyapi.Notifying
	eventually(t, "all four deliveries are noted", func() bool { // the relay records a delivery after the push service's response
		settings, _ = api[notifyapi.Notifying](t, s, "GET", "/api/notify", nil, nil)
		return len(settings.Deliveries) >= 4
	})
	if len(settings.Targets) != 1 || settings.Targets[0].Keys != nil || strings.Contains(settings.Targets[0].URL, "push") {
		t.Errorf("GET /api/notify = %+v; want one way without its secrets, and deliveries", settings)
	}
	if len(other.Pushed) != 0 {
		t.Errorf("a person who may see a different session got the push %+v; want none", <-other.Pushed)
	}
	if _, status := api[struct{}](t, s, "DELETE", "/api/notify/ways/"+way.ID, nil, nil); status != http.StatusNoContent {
		t.Errorf("removing the subscription: HTTP %d; want 204", status)
	}
	ask(t, c, "demo:/two", "t2")
	if p := other.Next(); p.Session != "demo:/two" || p.Detail != "echo test" {
		t.Errorf("the push is %+v; want what is asked in demo:/two", p)
	}
	if len(service.Pushed) != 0 {
		t.Errorf("a removed target got the push %+v; want none", <-service.Pushed)
	}
}
