package connect_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/internal/connect"
	"ahprelay/test/faultproxy"
	"ahprelay/test/locked"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A journey is a client at an endpoint of ahp-connect, which reaches the relay through gate, a
// proxy that can break the network.
type journey struct {
	*world
	gate   *faultproxy.Proxy
	client *refclient.Client
	name   string // the client's id
	chat   string
}

// newJourney returns a journey whose client has created a session and subscribed to its chat.
func newJourney(t *testing.T, relay gateway.Config) *journey {
	t.Helper()
	return newJourneyAt(t, gateway.RelayConfig{Gateway: relay})
}

func newJourneyAt(t *testing.T, relay gateway.RelayConfig) *journey {
	t.Helper()
	return newWorldAt(t, relay, nil).journey(t, "editor")
}

// journey returns a journey in the world, with a client, a session, an endpoint and a gate of its
// own.
func (w *world) journey(t *testing.T, client string) *journey {
	t.Helper()
	j := &journey{world: &world{Stack: w.Stack, tokens: w.tokens, log: &locked.Buffer{}, file: w.file}, name: client}
	j.gate = newGate(t, strings.TrimPrefix(w.Relay.URL(), "http://"))
	j.serve(t, connect.NewRelays(connect.NewRelay("http://"+j.gate.Addr(), connect.FileTokens(w.file))), nil)
	var err error
	if j.client, err = j.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: j.token(t, client), TokenIn: refclient.InTkn}); err != nil {
		t.Fatal(err)
	}
	initialize(t, j.client, client)
	session := "demo:/" + client
	if _, err := j.client.Call(t.Context(), "createSession", map[string]any{"channel": session, "provider": "demo"}); err != nil {
		t.Fatal(err)
	}
	snapshot, err := j.client.Subscribe(t.Context(), session)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(snapshot.State), `"defaultChat":"`)
	if !ok {
		t.Fatalf("the session's state has no default chat: %s", snapshot.State)
	}
	j.chat, _, _ = strings.Cut(rest, `"`)
	if _, err := j.client.Subscribe(t.Context(), j.chat); err != nil {
		t.Fatal(err)
	}
	return j
}

// hostConns returns the connections that the host has seen from the journey's client.
func (j *journey) hostConns() []*stack.TapConn {
	own := []byte(`"clientId":"` + j.name + `"`)
	return slices.DeleteFunc(j.Tap.Conns(), func(c *stack.TapConn) bool {
		messages := c.ToHost()
		return len(messages) == 0 || !bytes.Contains(messages[0], own)
	})
}

// stream makes the demo host begin a turn with n deltas of size bytes, pause milliseconds apart. It
// returns when the first has arrived at the client.
func (j *journey) stream(t *testing.T, turn string, n, pause, size int) {
	t.Helper()
	if _, err := j.client.Dispatch(j.chat, map[string]any{
		"type": "chat/turnStarted", "turnId": turn, "startedAt": "2026-01-01T00:00:00Z",
		"message": map[string]any{"text": fmt.Sprintf("stream %d %d %d", n, pause, size), "origin": map[string]any{"kind": "user"}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := j.client.WaitFor(t.Context(), func(frame []byte) bool { return bytes.Contains(frame, []byte(`"chat/delta"`)) }); err != nil {
		t.Fatal(err)
	}
}

// awaitTurn waits until the client has received the end of a turn.
func (j *journey) awaitTurn(t *testing.T, turn string) {
	t.Helper()
	if _, err := j.client.WaitFor(t.Context(), func(frame []byte) bool {
		return bytes.Contains(frame, []byte(`"chat/turnComplete"`)) && bytes.Contains(frame, []byte(`"`+turn+`"`))
	}); err != nil {
		t.Fatalf("no end of turn %s arrives: %v", turn, err)
	}
}

// same fails unless the client receives, on its only connection at the host, exactly the frames
// that the host sends. The host may still send.
func (j *journey) same(t *testing.T) {
	t.Helper()
	conns := j.hostConns()
	if len(conns) != 1 {
		t.Fatalf("the host has seen %d connections of the client; want one", len(conns))
	}
	natssite.Eventually(t, "the client has all frames", func() bool { return len(j.client.Frames()) >= len(conns[0].ToClient()) })
	got := j.client.Frames()
	want := conns[0].ToClient() // after got
	if len(got) > len(want) {
		t.Fatalf("the client received %d frames; want at most the host's %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(want[i], got[i]) {
			t.Fatalf("frame %d is %.200q; want the host's %.200q", i, got[i], want[i])
		}
	}
}

// stillOpen fails if the client's connection has ended.
func (j *journey) stillOpen(t *testing.T) {
	t.Helper()
	select {
	case <-j.client.Done():
		code, reason := j.client.CloseStatus()
		t.Errorf("the client's connection has ended with %d %s; want it open", code, reason)
	default:
	}
}

// TestBreaksAreInvisible breaks the networks of seven clients of one relay, each in a different
// way, while the host sends each client 300 to 500 actions, up to 500 a second. The clients'
// connections must stay open. No frame may be lost, repeated or changed.
func TestBreaksAreInvisible(t *testing.T) {
	heal := func(t *testing.T, p *faultproxy.Proxy) {
		if err := p.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	drop := func(percent int, during time.Duration) func(t *testing.T, p *faultproxy.Proxy) {
		return func(t *testing.T, p *faultproxy.Proxy) {
			if err := faultproxy.CanDrop(); err != nil {
				t.Skip(err)
			}
			if err := p.Drop(percent); err != nil {
				t.Fatal(err)
			}
			time.Sleep(during)
			heal(t, p)
		}
	}
	w := newWorld(t, nil)
	for _, test := range []struct {
		name           string
		actions, pause int // the pause is in milliseconds
		fault          func(t *testing.T, p *faultproxy.Proxy)
	}{
		{"a third of all packets lost", 400, 9, drop(33, 3*time.Second)},
		{"all packets lost", 500, 26, drop(100, 12*time.Second)}, // so that the stream dials again
		{"cut for 2 s", 400, 6, func(t *testing.T, p *faultproxy.Proxy) { p.Cut(); time.Sleep(2 * time.Second); heal(t, p) }},
		{"ten short cuts", 400, 3, func(t *testing.T, p *faultproxy.Proxy) {
			for range 10 {
				p.Cut()
				heal(t, p)
				time.Sleep(100 * time.Millisecond)
			}
		}},
		{"frozen radio", 400, 9, func(t *testing.T, p *faultproxy.Proxy) { p.Freeze(); time.Sleep(3 * time.Second); heal(t, p) }},
		{"changed address", 300, 3, func(t *testing.T, p *faultproxy.Proxy) { p.FreezeOpen() }},
		{"reset in a message", 300, 2, func(t *testing.T, p *faultproxy.Proxy) {
			p.ResetAfter(5000)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			j := w.journey(t, strings.ReplaceAll(test.name, " ", "-"))
			j.stream(t, "t1", test.actions, test.pause, 512)
			test.fault(t, j.gate)
			j.awaitTurn(t, "t1")
			j.same(t)
			j.stillOpen(t)
		})
	}
}

// absence returns the duration in the environment variable AHP_ABSENCE, which make absence sets.
// Without it, the test is skipped.
func absence(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("AHP_ABSENCE")
	if text == "" {
		t.Skip("AHP_ABSENCE is not set: make absence tests an absence of 9 minutes")
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLongAbsenceIsInvisible freezes the network for the duration in AHP_ABSENCE, while the host
// sends 15 actions a second and the client pings. The connection must stay open, each ping be
// answered, and no action be lost.
func TestLongAbsenceIsInvisible(t *testing.T) {
	away := absence(t)
	t.Parallel()
	j := newJourney(t, gateway.Config{})
	j.stream(t, "t1", int((away+20*time.Second)/(66*time.Millisecond)), 66, 512)
	j.gate.Freeze()
	for until := time.Now().Add(away); time.Now().Before(until); time.Sleep(5 * time.Second) {
		if _, err := j.client.Call(t.Context(), "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
			t.Fatalf("ping: %v; want no error", err)
		}
	}
	if err := j.gate.Heal(); err != nil {
		t.Fatal(err)
	}
	j.awaitTurn(t, "t1")
	j.sameTurn(t)
	j.stillOpen(t)
}

// sameTurn fails unless the client has received exactly the actions that the host has sent. It
// ignores the answers to pings, which ahp-connect may have given.
func (j *journey) sameTurn(t *testing.T) {
	t.Helper()
	actions := func(frames [][]byte) (list [][]byte) {
		for _, frame := range frames {
			if bytes.Contains(frame, []byte(`"method":"action"`)) {
				list = append(list, frame)
			}
		}
		return list
	}
	want, got := actions(j.Tap.Conns()[0].ToClient()), actions(j.client.Frames())
	if !slices.EqualFunc(want, got, bytes.Equal) || len(want) < 100 {
		t.Errorf("the client received %d actions, and the host sent %d; want the same, at least 100", len(got), len(want))
	}
	t.Logf("%d actions, %d bytes", len(got), len(bytes.Join(got, nil)))
}

// TestPingIsAnsweredMeanwhile sends pings while the network to the relay is frozen or cut. Each
// ping must be answered at once. When the relay is back, no ping may have a second answer.
func TestPingIsAnsweredMeanwhile(t *testing.T) {
	t.Parallel()
	j := newJourney(t, gateway.Config{})
	ping := func() {
		t.Helper()
		if _, err := j.client.Call(t.Context(), "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
			t.Errorf("ping: %v; want no error", err)
		}
	}
	j.gate.Freeze()
	ping() // this ping may have been sent to the relay
	ping()
	j.gate.Cut()
	ping()
	if err := j.gate.Heal(); err != nil {
		t.Fatal(err)
	}
	j.stream(t, "t1", 10, 1, 10)
	j.awaitTurn(t, "t1")
	answers := map[string]int{}
	for _, frame := range j.client.Frames() {
		if bytes.Contains(frame, []byte(`"result"`)) {
			id, _, _ := strings.Cut(strings.SplitN(string(frame), `"id":`, 2)[1], ",")
			answers[strings.Trim(id, "}")]++
		}
	}
	for id, n := range answers {
		if n != 1 {
			t.Errorf("request %s got %d answers; want 1", id, n)
		}
	}
}

// TestTooMuchIsMissedOnce freezes a client's network until the client has missed more than the
// relay keeps. Its connection must close with 1012, and a new connection must work.
func TestTooMuchIsMissedOnce(t *testing.T) {
	t.Parallel()
	const keeps = 256 << 10
	j := newJourney(t, gateway.Config{ClientBacklog: keeps})
	j.stream(t, "t1", 3000, 1, 1000)
	j.gate.Freeze()
	natssite.Eventually(t, "the relay keeps as much as it may", func() bool { return j.backlog(t) >= keeps })
	j.awaitMetric(t, "ahp_relay_backlog_bytes 0\n") // the relay has dropped the stream
	j.gate.Cut()
	if err := j.gate.Heal(); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the connection ends", j.client.Done())
	if code, reason := j.client.CloseStatus(); code != 1012 {
		t.Errorf("the connection was closed with %d %q; want 1012", code, reason)
	}
	again, err := j.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: j.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := again.Reconnect(t.Context(), refclient.ReconnectParams{ClientID: "editor", Subscriptions: []string{j.chat}}); err != nil {
		t.Errorf("reconnect: %v; want no error", err)
	}
}

// backlog returns how many bytes the relay keeps for its clients.
func (j *journey) backlog(t *testing.T) (bytes float64) {
	t.Helper()
	_, rest, _ := strings.Cut(j.relayMetrics(t), "\nahp_relay_backlog_bytes ")
	if _, err := fmt.Sscan(rest, &bytes); err != nil {
		t.Fatalf("the relay's metrics have no backlog: %v", err)
	}
	return bytes
}

// awaitMetric waits until the relay's metrics contain a line.
func (j *journey) awaitMetric(t *testing.T, line string) {
	t.Helper()
	natssite.Eventually(t, "the relay's metrics contain "+line, func() bool { return strings.Contains(j.relayMetrics(t), line) })
}

// relayMetrics returns the relay's metrics.
func (j *journey) relayMetrics(t *testing.T) string {
	t.Helper()
	response, err := http.Get(j.Relay.AdminURL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRevocationReachesAnAbsentClient revokes a person's tokens while the client is cut off and
// frames wait for it. The connection must close with 4501, and the client must get none of these
// frames.
func TestRevocationReachesAnAbsentClient(t *testing.T) {
	j := newJourney(t, gateway.Config{})
	j.stream(t, "t1", 3000, 1, 1000)
	j.gate.Cut()
	before := len(j.client.Frames())
	if err := j.Relay.Revocations().Add(auth.Revocation{Subject: "ada", Tenant: stack.Tenant, At: time.Now().UTC().Add(time.Second), Until: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if err := j.gate.Heal(); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the connection ends", j.client.Done())
	if code, reason := j.client.CloseStatus(); code != 4501 || !strings.Contains(reason, "relay token client into the --token-file") {
		t.Errorf("the connection was closed with %d %q; want 4501 with the remedy", code, reason)
	}
	if n := len(j.client.Frames()) - before; n > 100 { // some frames were on their way before the cut
		t.Errorf("the client received %d frames after the cut; want at most 100", n)
	}
}
