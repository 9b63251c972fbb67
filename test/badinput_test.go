package test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// Clients send invalid frames before and after initialize. The relay closes each client
// with the reason. The host gets no part of a frame, and another client keeps its
// connection.
func TestBadFramesAreAnswered(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{
		Upstream: server.URL(),
		Relay:    gateway.RelayConfig{Gateway: gateway.Config{MaxFrame: 1 << 20}},
	})
	dial := throughRelay(t, s)
	bystander := join(t, dial, "bystander", nil)
	for _, bad := range []struct {
		name   string
		frame  string
		code   ahp.CloseCode
		reason string
	}{
		{"no JSON", `{bad`, ahp.CloseBadMessage, "bad message: byte 1: "},
		{"empty", ``, ahp.CloseBadMessage, "bad message: "},
		{"no object", `"ping"`, ahp.CloseBadMessage, "bad message: "},
		{"batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, ahp.CloseBadMessage, "bad message: "},
		{"no JSON-RPC", `{"hello":"world"}`, ahp.CloseBadMessage, "bad message: "},
		{"trailing bytes", `{"jsonrpc":"2.0","id":1,"method":"ping"}{}`, ahp.CloseBadMessage, "bad message: "},
		{"method twice", `{"id":1,"method":"ping","method":"initialize"}`, ahp.CloseBadMessage, "bad message: "},
		{"two channels", `{"id":1,"method":"x","channel":"a:/1","params":{"channel":"a:/2"}}`, ahp.CloseBadMessage, "bad message: "},
		{"deep", `{"id":1,"method":"x","params":{"a":` + strings.Repeat("[", 2000) + strings.Repeat("]", 2000) + `}}`, ahp.CloseBadMessage, "bad message: "},
		{"not UTF-8", "{\"id\":1,\"method\":\"x\xff\"}", ahp.CloseBadMessage, "bad message: "},
	} {
		t.Run(bad.name, func(t *testing.T) {
			for _, initialized := range []bool{false, true} {
				var c *refclient.Client
				if initialized {
					c = join(t, dial, "bad", nil)
				} else {
					c = dialOnly(t, dial)
				}
				if err := c.SendRaw([]byte(bad.frame)); err != nil {
					t.Fatal(err)
				}
				wantClosed(t, c, bad.code, bad.reason)
			}
		})
	}
	t.Run("binary", func(t *testing.T) {
		c := dialOnly(t, dial)
		if err := c.SendBinary([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)); err != nil {
			t.Fatal(err)
		}
		wantClosed(t, c, ahp.CloseBadMessage, "bad message: binary")
	})
	for _, conn := range s.Tap.Conns() {
		for _, frame := range conn.ToHost() {
			if _, err := ahp.Peek(frame); err != nil || bytes.Contains(frame, []byte(`"x"`)) {
				t.Errorf("the host got %.100q; want only valid messages", frame)
			}
		}
	}
	call(t, bystander, "ping", `{"channel":"ahp-root://"}`)
}

func dialOnly(t *testing.T, dial dialer) *refclient.Client {
	t.Helper()
	c, err := dial(t.Context(), refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Abort() })
	return c
}

// A frame at the size limit passes. A request that is longer by one byte gets an error.
// For a longer notification or a longer first frame, the relay closes the connection.
func TestFramesAboveTheLimitAreAnswered(t *testing.T) {
	t.Parallel()
	const first, limit = 2000, 1 << 20
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{
		Upstream: server.URL(),
		Relay:    gateway.RelayConfig{Gateway: gateway.Config{MaxFrame: limit, MaxFirstFrame: first}},
	})
	dial := throughRelay(t, s)
	const ping, note = `"id":1,"method":"ping"`, `"method":"later/said"`
	frame := func(what string, size int) []byte {
		head, tail := `{"jsonrpc":"2.0",`+what+`,"params":{"channel":"ahp-root://","pad":"`, `"}}`
		return []byte(head + strings.Repeat("x", size-len(head)-len(tail)) + tail)
	}
	for _, test := range []struct {
		name        string
		initialized bool
		what        string
		size        int
		answer      string // expected response; "": the relay closes the connection
	}{
		{"first at the limit", false, ping, first, "answer"},
		{"first above it", false, ping, first + 1, ""},
		{"later at the limit", true, ping, limit, "answer"},
		{"later above it", true, ping, limit + 1, "error"},
		{"notification above it", true, note, limit + 1, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := dialOnly(t, dial)
			if test.initialized {
				call(t, c, "initialize", `{"channel":"ahp-root://","clientId":"x","protocolVersions":["0.9.0"]}`)
			}
			if err := c.SendRaw(frame(test.what, test.size)); err != nil {
				t.Fatal(err)
			}
			if test.answer == "" {
				wantClosed(t, c, ahp.CloseMessageTooBig, "message too big")
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), stepTime)
			defer cancel()
			if _, err := c.WaitFor(ctx, func(f []byte) bool { return fits(f, []string{test.answer, "1", "-32603"}) }); err != nil {
				code, reason := c.CloseStatus()
				t.Errorf("no answer to the frame above the limit: %v (close %d %s); want error -32603", err, code, reason)
			}
		})
	}
}

// TestTokensPassInEachPlace connects with valid and with invalid tokens, in each place
// of a handshake where a relay accepts a token.
func TestTokensPassInEachPlace(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	token := func(change func(*auth.Client)) string {
		made, err := s.Token(change)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	good := token(nil)
	for name, place := range map[string]refclient.TokenPlace{
		"header": refclient.InHeader, "access_token": refclient.InAccessToken,
		"tkn": refclient.InTkn, "subprotocol": refclient.InSubprotocol,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: good, TokenIn: place})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Abort()
			call(t, c, "ping", `{"channel":"ahp-root://"}`)
			if place == refclient.InSubprotocol && c.Subprotocol() != "ahp" {
				t.Errorf("subprotocol = %q; want ahp", c.Subprotocol())
			}
		})
	}
	hostToken, err := s.HostToken(stack.Host)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]struct {
		token string
		opts  refclient.Options
	}{
		"none":               {},
		"nonsense":           {token: "nonsense"},
		"a host's":           {token: hostToken},
		"tampered with":      {token: good[:len(good)-8] + "AAAAAAAA"},
		"two different ones": {token: good, opts: refclient.Options{Header: http.Header{"Sec-WebSocket-Protocol": {"ahp, bearer.other"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			bad.opts.Token = bad.token
			_, err := refclient.Dial(t.Context(), s.URL(stack.Host), bad.opts)
			var refused *refclient.HandshakeError
			if !errors.As(err, &refused) || refused.Status != http.StatusUnauthorized {
				t.Fatalf("dial: %v; want HTTP 401", err)
			}
			if got := refused.Header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer") {
				t.Errorf("WWW-Authenticate = %q; want Bearer", got)
			}
			if bad.token != "" && bytes.Contains(refused.Body, []byte(bad.token)) {
				t.Error("the answer contains the token; want it hidden")
			}
		})
	}
	t.Run("not for this host", func(t *testing.T) {
		c, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: token(func(c *auth.Client) { c.Hosts = []string{"other"} })})
		if err != nil {
			t.Fatal(err)
		}
		wantClosed(t, c, ahp.CloseForbidden, "forbidden")
	})
	t.Run("unknown host", func(t *testing.T) {
		c, err := refclient.Dial(t.Context(), s.URL("nowhere"), refclient.Options{Token: good})
		if err != nil {
			t.Fatal(err)
		}
		wantClosed(t, c, ahp.CloseUnknownHost, "unknown host")
	})
	t.Run("expires", func(t *testing.T) {
		for ttl := 2 * time.Second; ; ttl *= 2 { // doubled until the token lasts longer than a client takes to connect
			c, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{
				Token: token(func(c *auth.Client) { c.Expires = time.Now().Add(ttl) }),
			})
			if refused := new(refclient.HandshakeError); errors.As(err, &refused) && refused.Status == http.StatusUnauthorized && ttl < stepTime {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			wantClosed(t, c, ahp.CloseTokenEnded, "token expired")
			return
		}
	})
}

// TestOnlyPermittedOriginsConnect connects from permitted origins, as browsers do.
// Handshakes from other origins are refused.
func TestOnlyPermittedOriginsConnect(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{
		Upstream: server.URL(),
		Relay:    gateway.RelayConfig{Gateway: gateway.Config{Origins: []string{"*.example.com"}}},
	})
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	for origin, want := range map[string]int{
		"":                         http.StatusSwitchingProtocols,
		s.Relay.URL():              http.StatusSwitchingProtocols,
		"https://app.example.com":  http.StatusSwitchingProtocols,
		"https://evil.example.org": http.StatusForbidden,
		"null":                     http.StatusForbidden,
	} {
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		c, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: token, Header: header})
		got := http.StatusSwitchingProtocols
		var refused *refclient.HandshakeError
		if errors.As(err, &refused) {
			got = refused.Status
		} else if err != nil {
			t.Fatal(err)
		} else {
			_ = c.Abort()
		}
		if got != want {
			t.Errorf("origin %q: HTTP %d; want %d", origin, got, want)
		}
	}
}

// A client with the level look watches a session. The relay refuses its attempts to
// change it.
func TestReadersChangeNothing(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	vars := flowVars("demo", "00000000")
	owner := join(t, throughRelay(t, s), "owner", nil)
	create(t, owner, vars)
	watch(t, owner, vars)
	token, err := s.Token(func(c *auth.Client) { c.Access = auth.AccessRead })
	if err != nil {
		t.Fatal(err)
	}
	reader, err := refclient.Dial(t.Context(), s.URL(stack.Host), refclient.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Abort() })
	call(t, reader, "initialize", `{"channel":"ahp-root://","clientId":"reader","protocolVersions":["0.9.0"],"initialSubscriptions":["ahp-root://"]}`)
	watch(t, reader, vars)
	say(t, owner, vars["chat"], 1, "stream 5 1 10")
	awaitDeltas(t, []*refclient.Client{reader}, 5)

	_, err = reader.Call(t.Context(), "disposeSession", map[string]string{"channel": vars["session"]})
	var refused *refclient.RPCError
	if !errors.As(err, &refused) || refused.Code != ahp.CodePermissionDenied {
		t.Errorf("disposeSession: %v; want error %d", err, ahp.CodePermissionDenied)
	}
	say(t, reader, vars["chat"], 2, "hello")
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	echo, err := reader.WaitFor(ctx, func(f []byte) bool { return bytes.Contains(f, []byte("rejectionReason")) })
	if err != nil {
		t.Fatal(err)
	}
	if a, ok := refclient.ReadAction(echo); !ok || a.Type() != "chat/turnStarted" || !bytes.Contains(echo, []byte(`"clientId":"reader"`)) {
		t.Errorf("echo = %s; want the rejected action with its origin", echo)
	}
	for _, conn := range s.Tap.Conns() {
		for _, f := range conn.ToHost() {
			if bytes.Contains(f, []byte("disposeSession")) || bytes.Contains(f, []byte(`"hello"`)) {
				t.Errorf("the host got %s; want no message of a reader", f)
			}
		}
	}
}
