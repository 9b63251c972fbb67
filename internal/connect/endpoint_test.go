package connect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"ahprelay/agenthost"
	"ahprelay/agenthost/scripted"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/internal/connect"
	"ahprelay/test/faultproxy"
	"ahprelay/test/locked"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

func TestMain(m *testing.M) {
	if err := faultproxy.OwnNetwork(); err != nil {
		fmt.Fprintln(os.Stderr, "no packets are dropped:", err)
	}
	goleak.VerifyTestMain(m)
}

// A world is a relay with a demo host, and an endpoint of ahp-connect in front of it.
type world struct {
	*stack.Stack
	tokens  *connect.Tokens
	relay   *connect.Relay
	address string
	log     *locked.Buffer
	file    string // file with the relay's token
	stop    func()
}

func newWorld(t *testing.T, change func(*connect.Config)) *world {
	t.Helper()
	return newWorldAt(t, gateway.RelayConfig{}, change)
}

// newWorldAt returns a world with the given settings for the relay. The function change may change
// the endpoint's settings.
func newWorldAt(t *testing.T, relay gateway.RelayConfig, change func(*connect.Config)) *world {
	t.Helper()
	host, err := scripted.New(agenthost.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	server, err := stack.Serve(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	w := &world{log: &locked.Buffer{}, tokens: connect.NewTokens(filepath.Join(t.TempDir(), "tokens.json")), file: filepath.Join(t.TempDir(), "token")}
	parts := &locked.Buffer{} // log of relay and host-agent
	cfg := stack.Config{DataDir: t.TempDir(), Upstream: server.URL(), Relay: relay, Log: slog.New(slog.NewTextHandler(parts, nil))}
	if w.Stack, err = stack.Start(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of relay and host-agent:\n%s", parts)
		}
	})
	t.Cleanup(w.Stack.Close)
	w.writeToken(t, nil)
	w.relay = connect.NewRelay(w.Relay.URL(), connect.FileTokens(w.file))
	w.serve(t, connect.NewRelays(w.relay), change)
	return w
}

func (w *world) writeToken(t *testing.T, change func(*auth.Client)) {
	t.Helper()
	token, err := w.Token(change)
	if err == nil {
		err = os.WriteFile(w.file, []byte(token), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// serve starts an endpoint for relays, which runs until the test ends or stop is called. It sets
// address and stop.
func (w *world) serve(t *testing.T, relays *connect.Relays, change func(*connect.Config)) {
	t.Helper()
	cfg := connect.Config{Relays: relays, Tokens: w.tokens, Log: slog.New(slog.NewTextHandler(w.log, nil))}
	if change != nil {
		change(&cfg)
	}
	l, err := connect.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = l.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- connect.NewEndpoint(cfg).Serve(ctx, l) }()
	w.stop = func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the endpoint ends with %v; want no error", err)
		}
		ended <- nil
	}
	t.Cleanup(w.stop)
}

// token returns a new local token for a program, limited to hosts if any are given.
func (w *world) token(t *testing.T, name string, hosts ...string) string {
	t.Helper()
	made, err := w.tokens.Make(name, hosts, "")
	if err != nil {
		t.Fatal(err)
	}
	return made.Token
}

func (w *world) dial(t *testing.T, path string, opts refclient.Options) (*refclient.Client, error) {
	t.Helper()
	c, err := refclient.Dial(t.Context(), "ws://"+w.address+path, opts)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func initialize(t *testing.T, c *refclient.Client, name string) {
	t.Helper()
	if _, err := c.Initialize(t.Context(), refclient.InitializeParams{ClientID: name, ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Fatal(err)
	}
}

// TestClientReceivesTheHostsFrames connects clients with a local token in each permitted place.
// Each client must receive exactly the frames that the host has sent. The log must contain neither
// tokens nor messages.
func TestClientReceivesTheHostsFrames(t *testing.T) {
	w := newWorld(t, nil)
	token := w.token(t, "editor")
	for _, in := range []refclient.TokenPlace{refclient.InTkn, refclient.InHeader, refclient.InSubprotocol} {
		c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: in})
		if err != nil {
			t.Fatal(err)
		}
		initialize(t, c, "editor")
		if _, err := c.Call(t.Context(), "listSessions", map[string]any{"channel": "ahp-root://"}); err != nil {
			t.Fatal(err)
		}
		conns := w.Tap.Conns()
		sent := conns[len(conns)-1].ToClient()
		if got := c.Frames(); len(got) != len(sent) || !bytes.Equal(bytes.Join(got, nil), bytes.Join(sent, nil)) {
			t.Errorf("the client received %d frames, and the host sent %d; want the same frames", len(got), len(sent))
		}
		_ = c.Close()
	}
	c, err := w.dial(t, "/", refclient.Options{Token: w.token(t, "bridge", stack.Host), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatalf("a client without a path, with a token for one host: %v; want a connection", err)
	}
	initialize(t, c, "bridge")
	if text := w.log.String(); strings.Contains(text, token) || strings.Contains(text, "listSessions") {
		t.Errorf("the log contains secrets or messages; want neither:\n%s", text)
	}
}

// TestForeignRequestsAreRefused sends requests as other programs, web pages or rebound DNS names
// could. The endpoint must refuse each with the right HTTP status and a remedy. A page that is
// allowed by --allow-origin may connect.
func TestForeignRequestsAreRefused(t *testing.T) {
	w := newWorld(t, func(cfg *connect.Config) { cfg.Origins = []string{"https://vscode.dev"} })
	token := w.token(t, "editor")
	narrow := w.token(t, "narrow", "other-*")
	for _, test := range []struct {
		name, path, host string
		header           http.Header
		status           int
		want             string
	}{
		{"no token", "/ahp/laptop", "", nil, 401, "ahp-connect url"},
		{"wrong token", "/ahp/laptop?tkn=local_x", "", nil, 401, "ahp-connect token"},
		{"relay's own kind of token", "/ahp/laptop?tkn=a.b.c", "", nil, 401, "unknown local token"},
		{"two tokens", "/ahp/laptop?tkn=a&access_token=b", "", nil, 401, "no local token"},
		{"page", "/ahp/laptop?tkn=" + token, "", http.Header{"Origin": {"https://evil.example"}}, 403, "--allow-origin"},
		{"opaque page", "/ahp/laptop?tkn=" + token, "", http.Header{"Origin": {"null"}}, 403, "--allow-origin"},
		{"page on this machine", "/ahp/laptop?tkn=" + token, "", http.Header{"Origin": {"http://127.0.0.1:3000"}}, 403, "--allow-origin"},
		{"allowed and foreign", "/ahp/laptop?tkn=" + token, "", http.Header{"Origin": {"https://vscode.dev", "https://evil.example"}}, 403, "--allow-origin"},
		{"rebound name", "/ahp/laptop?tkn=" + token, "evil.example:8486", nil, 403, "127.0.0.1"},
		{"rebound look-alike", "/ahp/laptop?tkn=" + token, "127.0.0.1.evil.example", nil, 403, "127.0.0.1"},
		{"foreign address", "/ahp/laptop?tkn=" + token, "192.168.1.7:8486", nil, 403, "127.0.0.1"},
		{"host of a different token", "/ahp/laptop?tkn=" + narrow, "", nil, 403, "does not open laptop"},
		{"unknown relay", "/ahp/nowhere/laptop?tkn=" + token, "", nil, 404, "not signed in at nowhere"},
		{"no host", "/ahp/?tkn=" + token, "", nil, 404, "/ahp/HOST"},
		{"no path", "/?tkn=" + token, "", nil, 404, "/ahp/HOST"},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, w.address)
			}}}
			host := test.host
			if host == "" {
				host = w.address
			}
			_, err := refclient.Dial(t.Context(), "ws://"+host+test.path, refclient.Options{Header: test.header, HTTPClient: client})
			refused, ok := err.(interface{ Unwrap() error })
			if err == nil || !ok || !strings.Contains(err.Error(), http.StatusText(test.status)) && !strings.Contains(err.Error(), "HTTP ") {
				t.Fatalf("the refused request got %v, %v; want an HTTP status", err, refused)
			}
			status, body := statusOf(err)
			if status != test.status || !strings.Contains(body, test.want) {
				t.Errorf("the request is answered with HTTP %d %q; want %d %q", status, body, test.status, test.want)
			}
		})
	}
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: refclient.InTkn, Header: http.Header{"Origin": {"https://vscode.dev"}}})
	if err != nil {
		t.Fatalf("dialing from an allowed page: %v; want no error", err)
	}
	initialize(t, c, "page")
}

// statusOf returns the HTTP status and body with which the endpoint refused a WebSocket, or 0 if
// err is a different error.
func statusOf(err error) (int, string) {
	for err != nil {
		if refused, ok := err.(*refclient.HandshakeError); ok {
			return refused.Status, string(refused.Body)
		}
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			break
		}
		err = u.Unwrap()
	}
	return 0, ""
}

// TestRevokedLocalTokenEndsItsConnections connects two programs with local tokens, and revokes one
// token. Its program's connection must close with 4501; the other must stay open.
func TestRevokedLocalTokenEndsItsConnections(t *testing.T) {
	w := newWorld(t, nil)
	kept, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "kept"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "gone"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	initialize(t, gone, "gone")
	if err := connect.NewTokens(tokensFile(w)).Revoke("gone"); err != nil { // as in another process
		t.Fatal(err)
	}
	natssite.Next(t, "the revoked program's connection ends", gone.Done())
	if code, reason := gone.CloseStatus(); code != 4501 || !strings.Contains(reason, "token revoked") {
		t.Errorf("the connection was closed with %d %q; want 4501 token revoked", code, reason)
	}
	initialize(t, kept, "kept")
}

func tokensFile(w *world) string { return w.tokens.Path() }

// TestRelaysEndIsPassedOn revokes the person's tokens at the relay. The client's connection must
// close with 4501 and the remedy, and so must a new connection.
func TestRelaysEndIsPassedOn(t *testing.T) {
	w := newWorld(t, nil)
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	initialize(t, c, "editor")
	if err := w.Relay.Revocations().Add(auth.Revocation{Subject: "ada", Tenant: stack.Tenant, At: time.Now().UTC().Add(time.Second), Until: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the connection ends", c.Done())
	if code, reason := c.CloseStatus(); code != 4501 || !strings.Contains(reason, "relay token client into the --token-file") {
		t.Errorf("the connection was closed with %d %q; want 4501 with the remedy", code, reason)
	}
	late, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "a new connection ends", late.Done())
	if code, reason := late.CloseStatus(); code != 4501 || !strings.Contains(reason, "relay token client into the --token-file") {
		t.Errorf("the connection was closed with %d %q; want 4501 with the remedy", code, reason)
	}
}

// TestTokenIsRenewedOnTheConnection connects with a relay's token that expires in 4 s, and then
// puts a new token into the file. The client must stay connected for 6 s, and see none of
// ahp-connect's own messages.
func TestTokenIsRenewedOnTheConnection(t *testing.T) {
	w := newWorld(t, nil)
	w.writeToken(t, func(c *auth.Client) { c.Expires = time.Now().Add(4 * time.Second) })
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	initialize(t, c, "editor")
	w.writeToken(t, func(c *auth.Client) { c.ID = "" })
	expired := time.After(6 * time.Second)
	for n := 0; ; n++ {
		select {
		case <-expired:
			for _, frame := range c.Frames() {
				if bytes.Contains(frame, []byte("ahp-connect-")) {
					t.Errorf("the client received ahp-connect's own request or answer: %s", frame)
				}
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
		if _, err := c.Call(t.Context(), "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
			t.Fatalf("ping after %d answered ones: %v; want an answer", n, err)
		}
	}
}

// TestClosedForAnAwayHostNamesTheRemedy connects to a host whose host-agent has stopped. The
// connection must close with 4100 and the remedy.
func TestClosedForAnAwayHostNamesTheRemedy(t *testing.T) {
	w := newWorldAt(t, gateway.RelayConfig{Gateway: gateway.Config{HoldTime: 200 * time.Millisecond}}, nil)
	if err := w.StopAgent(); err != nil {
		t.Fatal(err)
	}
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SendRaw([]byte(early)); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the connection ends", c.Done())
	if code, reason := c.CloseStatus(); code != int(ahp.CloseHostOffline) || !strings.HasPrefix(reason, "host offline") || !strings.HasSuffix(reason, "; run host-agent check on its machine") {
		t.Errorf("the connection was closed with %d %q; want 4100 with the remedy", code, reason)
	}
}

// newAway returns a world whose relay is unreachable until the test calls Heal on the proxy.
func newAway(t *testing.T) (*world, *faultproxy.Proxy) {
	t.Helper()
	w := newWorld(t, nil)
	gate := newGate(t, strings.TrimPrefix(w.Relay.URL(), "http://"))
	gate.Cut()
	away := &world{Stack: w.Stack, tokens: w.tokens, log: &locked.Buffer{}, file: w.file}
	away.serve(t, connect.NewRelays(connect.NewRelay("http://"+gate.Addr(), connect.FileTokens(w.file))), nil)
	return away, gate
}

// early is a client's first message.
const early = `{"jsonrpc":"2.0","id":"early","method":"initialize","params":{"channel":"ahp-root://","clientId":"editor","protocolVersions":["0.9.0"]}}`

// TestClientWaitsForItsRelay connects a client while the relay is unreachable. Its pings must be
// answered at once, and its initialize when the relay is reachable.
func TestClientWaitsForItsRelay(t *testing.T) {
	w, gate := newAway(t)
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Call(t.Context(), "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
		t.Errorf("ping while the relay is unreachable: %v; want an answer", err)
	}
	if err := gate.Heal(); err != nil {
		t.Fatal(err)
	}
	initialize(t, c, "editor")
}

// TestClientPingsWhileItsRelayIsAway sends initialize and then pings while the relay is
// unreachable. The pings must be answered at once, because a client could otherwise give up. The
// answer to initialize must follow when the relay is reachable.
func TestClientPingsWhileItsRelayIsAway(t *testing.T) {
	t.Parallel()
	w, gate := newAway(t)
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SendRaw([]byte(early)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // after initialize, which has no answer yet
		if _, err := c.Call(t.Context(), "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
			t.Fatal("ping while the relay is unreachable must be answered: ", err)
		}
	}
	if err := gate.Heal(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.WaitFor(t.Context(), func(frame []byte) bool { return bytes.Contains(frame, []byte(`"id":"early","result":{`)) }); err != nil {
		t.Error(err)
	}
}

// TestDepartedClientReachesNoHost lets a client send initialize and leave while its relay is
// unreachable. The initialize must not reach the host later: the host would otherwise send it
// messages that are for the client's next connection.
func TestDepartedClientReachesNoHost(t *testing.T) {
	t.Parallel()
	w, gate := newAway(t)
	token := w.token(t, "editor")
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SendRaw([]byte(early)); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(w.log.String(), "client connected") {
		time.Sleep(5 * time.Millisecond)
	}
	if err := c.Abort(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(w.log.String(), "client gone") { // the relay is still unreachable
		time.Sleep(5 * time.Millisecond)
	}
	if !strings.Contains(w.log.String(), "client lost") {
		t.Fatal("the client's end was not noticed while the relay was unreachable; want client lost in the log: ", w.log)
	}
	if err := gate.Heal(); err != nil {
		t.Fatal(err)
	}
	next, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	initialize(t, next, "editor")
}

// TestHostileRelayIsRefused connects to a relay that sends bytes which a client must never get:
// binary frames, and text that is not UTF-8. The connection must end, and the client receive
// nothing.
func TestHostileRelayIsRefused(t *testing.T) {
	for name, answer := range map[string]struct {
		kind websocket.MessageType
		data string
	}{"text that is not UTF-8": {websocket.MessageText, "{\"jsonrpc\":\"\xff\"}"}, "binary": {websocket.MessageBinary, "{}"}} {
		t.Run(name, func(t *testing.T) {
			w := &world{tokens: connect.NewTokens(""), log: &locked.Buffer{}}
			relay, err := stack.Serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if ws, err := websocket.Accept(rw, r, nil); err == nil {
					_ = ws.Write(r.Context(), answer.kind, []byte(answer.data))
					_, _, _ = ws.Read(r.Context())
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(relay.Stop)
			file := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			w.serve(t, connect.NewRelays(connect.NewRelay("http"+strings.TrimPrefix(relay.URL(), "ws"), connect.FileTokens(file))), nil)
			c, err := w.dial(t, "/ahp/laptop", refclient.Options{Token: w.token(t, "editor"), TokenIn: refclient.InTkn})
			if err != nil {
				t.Fatal(err)
			}
			natssite.Next(t, "the connection ends", c.Done())
			if got := c.Frames(); len(got) != 0 {
				t.Errorf("the client received %q; want nothing", got)
			}
		})
	}
}

// TestConsoleIsServed requests the console's page without a token. The page must be able to connect
// with a token, and to list the hosts. A page from another program's address must be refused.
func TestConsoleIsServed(t *testing.T) {
	w := newWorld(t, nil)
	token := w.token(t, "console")
	response, err := http.Get("http://" + w.address + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !bytes.Contains(page, []byte("<script")) || !strings.Contains(response.Header.Get("Content-Security-Policy"), "connect-src 'self'") {
		t.Errorf("the console is HTTP %d, %v, %.100s; want 200, a script, and a policy", response.StatusCode, err, page)
	}
	own := http.Header{"Origin": {"http://" + w.address}}
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: refclient.InTkn, Header: own})
	if err != nil {
		t.Fatal(err)
	}
	initialize(t, c, "page")
	other := http.Header{"Origin": {"http://127.0.0.1:1"}} // another program's page
	if _, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: token, TokenIn: refclient.InTkn, Header: other}); err == nil {
		t.Error("a page from a different origin connects; want a refusal")
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.address+"/api/hosts", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var hosts struct {
		Hosts []struct{ Host, State, Since string }
		Token struct{ Subject, Access string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&hosts); err != nil || len(hosts.Hosts) != 1 || hosts.Hosts[0].State != "online" || hosts.Hosts[0].Since == "" || hosts.Token.Subject != "console" || hosts.Token.Access != "write" {
		t.Errorf("the hosts are %+v, %v; want one, online", hosts, err)
	}
}
