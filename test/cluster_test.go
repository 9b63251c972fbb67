package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// patientResume is a resume window that is longer than any test. If a connection ends
// in a test, it does not end because the window is over.
const patientResume = time.Minute

// A viewer is a client of a chat. When its relay ends, it reconnects through another
// relay.
type viewer struct {
	id      string
	client  *refclient.Client
	seen    []refclient.Action // actions from connections before the current one
	lastSeq int64              // highest serverSeq among all received actions
}

// actions returns all actions that a viewer has received, in order, over all its
// connections.
func (v *viewer) actions() []refclient.Action {
	all := v.seen
	for _, frame := range v.client.Frames() {
		if a, ok := refclient.ReadAction(frame); ok {
			all = append(all, a)
		}
	}
	return all
}

// resume reconnects a viewer through another relay, with its last serverSeq. The host
// must answer with a replay, whose actions resume adds to those that the viewer has
// received.
func (v *viewer) resume(t *testing.T, dial dialer, channels []string) {
	t.Helper()
	v.seen = v.actions()
	if n := len(v.seen); n > 0 {
		v.lastSeq = max(v.lastSeq, v.seen[n-1].ServerSeq)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	c, err := dial(ctx, refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	result, err := c.Reconnect(ctx, refclient.ReconnectParams{ClientID: v.id, LastSeenServerSeq: v.lastSeq, Subscriptions: channels})
	if err != nil || result.Type != "replay" {
		t.Fatalf("%s: reconnect: %q, %v; want a replay", v.id, result.Type, err)
	}
	for _, raw := range result.Actions {
		var a refclient.Action
		if err := json.Unmarshal(raw, &a); err != nil {
			t.Fatal(err)
		}
		v.seen = append(v.seen, a)
	}
	v.client = c
}

// text joins the contents of the chat/delta actions among actions.
func text(t *testing.T, actions []refclient.Action) string {
	t.Helper()
	var b strings.Builder
	for _, a := range actions {
		var delta struct{ Type, Content string }
		if err := json.Unmarshal(a.Action, &delta); err != nil {
			t.Fatal(err)
		}
		if delta.Type == "chat/delta" {
			fmt.Fprintf(&b, "%d:%s\n", a.ServerSeq, delta.Content)
		}
	}
	return b.String()
}

// A cluster is two relays whose NATS servers are connected. The first relay is a process,
// so a test can kill it. The host-agent is connected to the second relay.
type cluster struct {
	*stack.Stack
	host   *agenthost.Host
	first  *relayProcess
	config gateway.RelayConfig // configuration of the first relay
	meter  *stack.Meter
	both   bool // the host-agent knows the URLs of both relays, and no NATS URL
}

func startCluster(t *testing.T) *cluster { return startClusterOf(t, nil) }

// startClusterOf is startCluster, and lets change edit the host's configuration.
func startClusterOf(t *testing.T, change func(*agenthost.Config)) *cluster {
	t.Helper()
	c := &cluster{config: gateway.RelayConfig{
		DataDir: t.TempDir(), Listen: natssite.FreePort(t), NATSListen: natssite.FreePort(t), ClusterListen: natssite.FreePort(t),
	}}
	second, public := natssite.FreePort(t), natssite.FreePort(t)
	c.config.ClusterRoutes = []string{second, c.config.ClusterListen} // both relays have the same list
	c.config.Gateway.Resume = patientResume
	c.config.Gateway.OwnURL = "http://" + c.config.Listen
	other := gateway.RelayConfig{Listen: public, NATSListen: "127.0.0.1:0", ClusterListen: second, ClusterRoutes: c.config.ClusterRoutes, AdminListen: gateway.NoListener}
	other.Gateway.Resume, other.Gateway.OwnURL = patientResume, "http://"+public
	c.first = startRelayProcess(t, c.config) // the second relay starts later
	host, server := newRefhost(t, change)
	c.host = host
	c.Stack = startStackWith(t, stack.Config{
		DataDir: copyKeys(t, c.config.DataDir), Upstream: server.URL(), Relay: other,
		Agent: hostagent.Config{Resume: patientResume},
	}, func(s *stack.Stack, cfg *hostagent.Config) error {
		if c.both {
			cfg.Relays, cfg.NATSURLs = []string{"http://" + public, c.first.URL}, nil
			return nil
		}
		var err error
		if c.meter, err = stack.NewMeter(s.Relay.NATSAddr().String()); err != nil {
			return err
		}
		t.Cleanup(c.meter.Close)
		cfg.NATSURLs = []string{"nats://" + c.meter.Addr()}
		return nil
	})
	return c
}

// Clients at two relays watch one host's chat. The host-agent sends each action once
// for all four clients. The first relay is then killed: its clients resume at the
// second relay without loss or repetition, and the host loses their old connections.
// The first relay starts again and serves the host.
func TestKilledRelayLosesNothing(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.first.await(t, "online")
	vars := flowVars("demo", "00000000")
	channels := []string{"ahp-root://", vars["session"], vars["chat"]}
	var viewers []*viewer
	var clients []*refclient.Client
	for i, dial := range []dialer{throughRelay(t, c.Stack), c.first.dial, throughRelay(t, c.Stack), c.first.dial} {
		v := &viewer{id: fmt.Sprintf("viewer-%d", i)}
		v.client = join(t, dial, v.id, vars)
		if i == 0 {
			create(t, v.client, vars)
		}
		watch(t, v.client, vars)
		viewers, clients = append(viewers, v), append(clients, v.client)
	}
	awaitClients(t, c.Stack, len(viewers))
	wantEndpoint(t, c)
	say(t, clients[0], vars["chat"], 1, "stream 20 2 100") // teaches the host-agent which clients share a chat
	awaitDeltas(t, clients, 20)
	before := c.meter.Bytes()
	const actions, size = 200, 1000
	say(t, clients[0], vars["chat"], 2, fmt.Sprintf("stream %d 2 %d", actions, size))
	awaitDeltas(t, clients, 20+actions)
	sent := c.meter.Bytes() - before
	t.Logf("%d clients at two relays × %d actions of %d bytes: %d bytes up", len(clients), actions, size, sent)
	if limit := int64(actions * (size + deltaSize(t, clients[0])) * 3 / 2); sent > limit {
		t.Errorf("host-agent sent %d bytes; want at most %d", sent, limit)
	}
	for i, v := range viewers {
		wantAllOf(t, v.id, v.client, c.Tap.Conns()[i])
	}

	say(t, clients[0], vars["chat"], 3, "stream 400 2 100")
	awaitDeltas(t, clients[1:2], 20+actions+50)
	killed := time.Now()
	c.first.kill()
	for _, i := range []int{1, 3} {
		select {
		case <-clients[i].Done():
		case <-time.After(stepTime):
			t.Fatal("a client of the killed relay is still connected; want it closed")
		}
		viewers[i].resume(t, throughRelay(t, c.Stack), channels)
	}
	awaitDeltas(t, clients[:1], 20+actions+400)
	want := text(t, viewers[0].actions())
	for _, v := range viewers[1:] {
		eventually(t, v.id+" has got as much as the one that stayed", func() bool { return len(text(t, v.actions())) >= len(want) })
		if got := text(t, v.actions()); got != want {
			t.Errorf("%s received a different text than the viewer that stayed; want the same", v.id)
		}
	}
	awaitClients(t, c.Stack, len(viewers)) // the old connections of the two resumed clients are gone
	t.Logf("the host was rid of the clients of the killed relay after %v", time.Since(killed).Round(time.Millisecond))

	again := startRelayProcess(t, c.config)
	again.await(t, "online")
	back := &viewer{id: "viewer-back", client: join(t, again.dial, "viewer-back", vars)}
	watch(t, back.client, vars)
	say(t, clients[0], vars["chat"], 4, "stream 20 2 100")
	awaitDeltas(t, []*refclient.Client{back.client}, 20)
}

// wantEndpoint checks that both relays name the host-agent's relay as the host's
// endpoint, and that the second relay redirects clients to it.
func wantEndpoint(t *testing.T, c *cluster) {
	t.Helper()
	want := c.URL(stack.Host)
	for name, api := range map[string]func() (hostsapi.Info, error){
		"the first": func() (hostsapi.Info, error) { return c.first.host(t.Context()) },
		"the other": func() (hostsapi.Info, error) { return c.API(t.Context()) },
	} {
		eventually(t, name+" names "+want, func() bool {
			info, err := api()
			return err == nil && info.Endpoint == want
		})
	}
	token, err := c.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]string{c.URL(stack.Host): "", "ws" + strings.TrimPrefix(c.first.URL, "http") + "/ahp/" + stack.Host: want} {
		ws, answer, err := websocket.Dial(t.Context(), url, &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}})
		if err != nil {
			t.Fatal(err)
		}
		_ = ws.CloseNow()
		if got := answer.Header.Get(hostsapi.EndpointHeader); got != want {
			t.Errorf("at %s a client is told %q; want %q", url, got, want)
		}
	}
}

// Two relays restart, first each alone. What they know about a host, such as its state
// and the time when it was last seen, survives.
func TestHostsSurviveRestartsOfRelays(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.first.await(t, "online")
	if err := c.StopAgent(); err != nil {
		t.Fatal(err)
	}
	seen := c.first.await(t, "offline")
	c.Relay.Close()
	wantReady(t, c.first.URL, "degraded: the registry store")
	c.first.stop()

	alone := startRelayProcess(t, c.config) // the second relay is down
	if info := alone.await(t, "offline"); info.Reason != seen.Reason || info.LastSeen == nil || !info.LastSeen.Equal(*seen.LastSeen) {
		t.Errorf("a relay that starts alone lists the host as %+v; want the reason and time of %+v", info, seen)
	}
	wantState(t, alone.URL, http.StatusServiceUnavailable, "the registry store has not been read") // a load balancer sends no client to this relay

	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if err := c.StartRelay(ctx); err != nil {
		t.Fatal(err)
	}
	awaitState(t, c.Stack, "offline")
	wantReady(t, alone.URL, "ready\n")
	alone.kill()
	if err := c.StartAgent(); err != nil { // reaches the second relay only, and waits until both relays run
		t.Fatal(err)
	}
	again := startRelayProcess(t, c.config)
	awaitState(t, c.Stack, "online")
	again.await(t, "online")
	wantReady(t, again.URL, "ready\n")
	call(t, join(t, again.dial, "a", nil), "ping", `{"channel":"ahp-root://"}`)
}

// The host-agent's relay is killed. The host-agent moves to the second relay. A client
// there receives all actions on the same connection.
func TestHostAgentLeavesAKilledRelay(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.first.await(t, "online") // a relay that runs alone accepts only hosts it knows
	if err := c.StopAgent(); err != nil {
		t.Fatal(err)
	}
	c.Relay.Close()
	c.both = true
	if err := c.StartAgent(); err != nil { // reaches the first relay only, and waits for the registry's store
		t.Fatal(err)
	}
	c.first.awaitLog(t, "event=host-connect")
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if err := c.StartRelay(ctx); err != nil {
		t.Fatal(err)
	}
	c.first.await(t, "online")
	awaitState(t, c.Stack, "online")
	vars := flowVars("demo", "00000000")
	viewer := join(t, throughRelay(t, c.Stack), "viewer", vars)
	create(t, viewer, vars)
	watch(t, viewer, vars)
	say(t, viewer, vars["chat"], 1, "stream 500 2 100")
	awaitDeltas(t, []*refclient.Client{viewer}, 50)
	killed := time.Now()
	c.first.kill()
	awaitDeltas(t, []*refclient.Client{viewer}, 500)
	say(t, viewer, vars["chat"], 2, "stream 20 2 100")
	awaitDeltas(t, []*refclient.Client{viewer}, 520)
	t.Logf("all that was said meanwhile was there %v after the relay was killed", time.Since(killed).Round(time.Millisecond))
	wantAllOf(t, "viewer", viewer, c.Tap.Conns()[0])
	if n := len(c.Tap.Conns()); n != 1 {
		t.Errorf("%d connections at the host; want one", n)
	}
	awaitState(t, c.Stack, "online")
}

// The only relay is killed, and starts again. The host-agent learns from the new
// process that the old one is gone. It drops the old clients' connections to the host
// long before the resume window is over.
func TestSuccessorDropsOldConnections(t *testing.T) {
	t.Parallel()
	cfg := gateway.RelayConfig{DataDir: t.TempDir(), Listen: natssite.FreePort(t)}
	cfg.Gateway.Resume = patientResume
	relay := startRelayProcess(t, cfg)
	_, host := newRefhost(t, nil)
	token, err := relay.keys.Tokens().IssueHost(auth.Enrolment{Tenant: stack.Tenant, Host: stack.Host, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := hostagent.New(hostagent.Config{
		Relays: []string{relay.URL}, Token: func() (string, error) { return token, nil },
		Upstream: hostagent.Upstream{URL: host.URL()}, Resume: patientResume,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the host-agent ended with %v; want no error", err)
		}
	})
	relay.await(t, "online")
	clients := func(r *relayProcess, n int) func() bool {
		return func() bool {
			info, err := r.host(t.Context())
			return err == nil && info.Clients == n
		}
	}
	for _, id := range []string{"a", "b"} {
		join(t, relay.dial, id, nil)
	}
	eventually(t, "the clients are counted", clients(relay, 2))
	relay.kill()
	started := time.Now()
	relay = startRelayProcess(t, cfg)
	join(t, relay.dial, "c", nil)
	eventually(t, "the host has one client", clients(relay, 1))
	t.Logf("the host was rid of the others %v after the start of the next relay", time.Since(started).Round(time.Millisecond))

	// A relay that is stopped in order removes its entry from the file instances.
	relay.stop()
	if left, err := os.ReadFile(filepath.Join(cfg.DataDir, "instances")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a stopped relay has left the file instances with %q, %v; want it removed", left, err)
	}
}

func wantReady(t *testing.T, url, want string) {
	t.Helper()
	wantState(t, url, http.StatusOK, want)
}

func wantState(t *testing.T, url string, status int, want string) {
	t.Helper()
	eventually(t, url+"/readyz says "+want, func() bool {
		response, err := http.Get(url + "/readyz")
		if err != nil {
			return false
		}
		body, err := io.ReadAll(response.Body)
		return response.Body.Close() == nil && err == nil && response.StatusCode == status && strings.Contains(string(body), want)
	})
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(stepTime); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("the condition is not true after %v: %s", stepTime, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// The second relay drains. It closes each client after it has sent all pending
// messages. The client then resumes at the first relay, and misses nothing. The test
// logs how long each client was away.
func TestDrainedClientsContinueElsewhere(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	c.first.await(t, "online")
	vars := flowVars("demo", "00000000")
	channels := []string{"ahp-root://", vars["session"], vars["chat"]}
	var viewers []*viewer
	var clients []*refclient.Client
	for i, dial := range []dialer{c.first.dial, throughRelay(t, c.Stack), throughRelay(t, c.Stack), throughRelay(t, c.Stack), throughRelay(t, c.Stack)} {
		v := &viewer{id: fmt.Sprintf("viewer-%d", i)}
		v.client = join(t, dial, v.id, vars)
		if i == 0 {
			create(t, v.client, vars)
		}
		watch(t, v.client, vars)
		viewers, clients = append(viewers, v), append(clients, v.client)
	}
	const actions = 400
	say(t, clients[0], vars["chat"], 1, fmt.Sprintf("stream %d 5 100", actions))
	awaitDeltas(t, clients, 20)
	type closed struct {
		viewer *viewer
		at     time.Time
	}
	ends := make(chan closed, len(viewers))
	for i, v := range viewers[1:] {
		go func() {
			<-clients[i+1].Done()
			ends <- closed{v, time.Now()}
		}()
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		c.Relay.Drain(ctx, time.Second)
	}()
	for range viewers[1:] {
		select {
		case end := <-ends:
			wantClosed(t, end.viewer.client, ahp.CloseShuttingDown, "relay shutting down")
			end.viewer.resume(t, c.first.dial, channels)
			t.Logf("%s was away for %v", end.viewer.id, time.Since(end.at).Round(100*time.Microsecond))
		case <-time.After(stepTime):
			t.Fatal("a client of the drained relay is still connected; want it closed")
		}
	}
	<-drained
	awaitDeltas(t, clients[:1], actions)
	want := text(t, viewers[0].actions())
	for _, v := range viewers[1:] {
		eventually(t, v.id+" has got as much as the one that stayed", func() bool { return len(text(t, v.actions())) >= len(want) })
		if got := text(t, v.actions()); got != want {
			t.Errorf("%s received a different text than the viewer that stayed; want the same", v.id)
		}
	}
}
