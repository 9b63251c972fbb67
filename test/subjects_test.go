package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/agenthost"
	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// hostURL returns the URL of the host in AHP_UPSTREAM, or starts a reference host and
// returns its URL.
func hostURL(t *testing.T) string {
	t.Helper()
	if url := os.Getenv("AHP_UPSTREAM"); url != "" {
		return url
	}
	_, server := newRefhost(t, nil)
	return server.URL()
}

// A person connects clients with tokens for the same subject.
type person struct {
	t    *testing.T
	s    *stack.Stack
	who  auth.Client // subject and rights in the token
	file string      // answer of the person's clients to the host's requests for files; "": such a request fails the test
}

// dial connects a client of a person. asked, if not nil, counts the host's requests for
// files.
func (p *person) dial(asked *atomic.Int32) *refclient.Client {
	p.t.Helper()
	token, err := p.s.Token(func(c *auth.Client) {
		c.Subject, c.Reverse = p.who.Subject, p.who.Reverse
		if p.who.Access != "" {
			c.Access = p.who.Access
		}
	})
	if err != nil {
		p.t.Fatal(err)
	}
	answer := func(result any) refclient.Handler {
		return func(context.Context, json.RawMessage) (any, error) {
			if asked != nil {
				asked.Add(1)
			}
			return result, nil
		}
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), stepTime)
	defer cancel()
	c, err := refclient.Dial(ctx, p.s.URL(stack.Host), refclient.Options{Token: token, Handlers: map[string]refclient.Handler{
		"resourceRead":    answer(map[string]any{"data": p.file, "encoding": "utf-8", "contentType": "text/plain"}),
		"resourceResolve": answer(map[string]any{"uri": "file:///tmp/a.txt", "type": "file", "size": len(p.file), "mtime": "2026-11-21T12:00:00.000Z"}),
		"resourceList":    answer(map[string]any{"entries": []any{}}),
	}})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Abort() })
	return c
}

// codeOf sends a request. It returns the error's code, or 0 if the request succeeds.
func codeOf(t *testing.T, c *refclient.Client, method string, params map[string]any) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	_, err := c.Call(ctx, method, params)
	var refused *refclient.RPCError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &refused):
		return refused.Code
	}
	t.Fatalf("calling %s: %v; want an error code of AHP", method, err)
	return 0
}

func greeting(method, clientID string) map[string]any {
	params := map[string]any{"channel": "ahp-root://", "clientId": clientID}
	if method == "initialize" {
		params["protocolVersions"] = []string{"0.9.0"}
	} else {
		params["lastSeenServerSeq"], params["subscriptions"] = 0, []string{"ahp-root://"}
	}
	return params
}

// wantSentAway fails unless the host-agent refuses a client's method with -32009 and
// then closes the connection with 4503.
func wantSentAway(t *testing.T, what string, c *refclient.Client, method, clientID string) {
	t.Helper()
	if code := codeOf(t, c, method, greeting(method, clientID)); code != ahp.CodePermissionDenied {
		t.Errorf("%s: %s was answered with code %d; want %d", what, method, code, ahp.CodePermissionDenied)
	}
	awaitClosed(t, c, ahp.CloseForbidden, "forbidden: the clientId is not this token's")
}

func awaitClosed(t *testing.T, c *refclient.Client, want ahp.CloseCode, begins string) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(stepTime):
		t.Fatal("the connection is open; want it closed")
	}
	if code, reason := c.CloseStatus(); ahp.CloseCode(code) != want || !strings.HasPrefix(reason, begins) {
		t.Errorf("the connection was closed with %d %q; want %d %q", code, reason, want, begins)
	}
}

// unique returns a clientId that no earlier test run has used at the same host.
func unique(name string) string { return fmt.Sprintf("%s-%d", name, time.Now().UnixNano()) }

// TestClientIDTheft lets a subject use another subject's clientId: by initialize and by
// reconnect, while the owner is connected and after. The host-agent refuses each
// attempt.
func TestClientIDTheft(t *testing.T) {
	t.Parallel()
	s := startStack(t, stack.Config{Upstream: hostURL(t)})
	ada, bob := &person{t: t, s: s, who: auth.Client{Subject: "ada"}}, &person{t: t, s: s, who: auth.Client{Subject: "bob"}}
	for _, pair := range [][2]*person{{ada, bob}, {bob, ada}} {
		owner, thief, id := pair[0], pair[1], unique("c")
		first := owner.dial(nil)
		if code := codeOf(t, first, "initialize", greeting("initialize", id)); code != 0 {
			t.Fatalf("%s's initialize: error code %d; want 0", owner.who.Subject, code)
		}
		for _, method := range []string{"initialize", "reconnect"} {
			wantSentAway(t, "while the owner is there", thief.dial(nil), method, id)
		}
		_ = first.Close()
		wantSentAway(t, "when the owner is away", thief.dial(nil), "reconnect", id)
		wantSentAway(t, "in capitals", thief.dial(nil), "initialize", strings.ToUpper(id))
		if code := codeOf(t, owner.dial(nil), "reconnect", greeting("reconnect", id)); code != 0 {
			t.Errorf("the owner's reconnect: error code %d; want none", code)
		}
	}
	const refused = `ahp_relay_refusals_total{refusal_class="client_id"} 8`
	eventually(t, refused, func() bool { return strings.Contains(fetch(t, s.Relay.AdminURL()+"/metrics", ""), refused) })
}

// Two subjects initialize with the same new clientId at once. Exactly one of them is
// admitted.
func TestOneSubjectWinsAClientID(t *testing.T) {
	t.Parallel()
	s := startStack(t, stack.Config{Upstream: hostURL(t)})
	ada, bob := &person{t: t, s: s, who: auth.Client{Subject: "ada"}}, &person{t: t, s: s, who: auth.Client{Subject: "bob"}}
	for range 10 {
		id := unique("race")
		clients := []*refclient.Client{ada.dial(nil), bob.dial(nil)}
		var codes [2]int
		var wg sync.WaitGroup
		for n, c := range clients {
			wg.Go(func() { codes[n] = codeOf(t, c, "initialize", greeting("initialize", id)) })
		}
		wg.Wait()
		if codes != [2]int{0, ahp.CodePermissionDenied} && codes != [2]int{ahp.CodePermissionDenied, 0} {
			t.Errorf("codes %v; want one to be let in", codes)
		}
	}
}

// TestClientIDAfterHostRestart ends the host's process. Before the end, a second
// subject is refused with the first subject's clientId. After the host has started
// again, it may use the clientId, and the first subject may not.
func TestClientIDAfterHostRestart(t *testing.T) {
	t.Parallel()
	host, server := newRefhost(t, nil)
	cfg := stack.Config{Upstream: server.URL()}
	cfg.Agent.Upstream.URL = server.URL() // without the tap, which would go on listening when the host ends
	s := startStack(t, cfg)
	ada, bob := &person{t: t, s: s, who: auth.Client{Subject: "ada"}}, &person{t: t, s: s, who: auth.Client{Subject: "bob"}}
	owner := ada.dial(nil)
	if code := codeOf(t, owner, "initialize", greeting("initialize", "c")); code != 0 {
		t.Fatalf("ada's initialize: error code %d; want 0", code)
	}
	_ = owner.Close()
	wantSentAway(t, "before", bob.dial(nil), "initialize", "c")
	server.Stop()
	if err := host.Close(); err != nil {
		t.Fatal(err)
	}
	awaitState(t, s, "offline")
	awaitClients(t, s, 0)
	awaitReason(t, s, "nothing listens")
	startAnew(t, s, server, agenthost.Config{})
	if code := codeOf(t, bob.dial(nil), "initialize", greeting("initialize", "c")); code != 0 {
		t.Errorf("bob, at the next host process: code %d; want 0", code)
	}
	wantSentAway(t, "the former owner", ada.dial(nil), "reconnect", "c")
}

// awaitReason waits until the relay's API reports why as a part of the reason for the
// host's absence.
func awaitReason(t *testing.T, s *stack.Stack, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	for {
		info, err := s.API(ctx)
		if err == nil && strings.Contains(info.Reason, why) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the host is away because %q, %v; want %q", info.Reason, err, why)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestFilesOfClientsStayWithTheirSubject requests a file of ada's client through the
// host, as ada and as bob. Bob never gets it. Ada gets it unless a client with write
// access used the host before and her token does not permit requests from the host.
func TestFilesOfClientsStayWithTheirSubject(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		ada     auth.Client // token of ada, whose client has the file
		asks    string      // subject that requests the file: "ada" on a second connection, or "bob"
		other   auth.Client // a subject that used the host before; no Subject: nobody did
		want    int
		reaches bool // whether the host's request reaches ada's client
	}{
		{"alone", auth.Client{}, "ada", auth.Client{}, 0, true},
		{"a reader was there", auth.Client{}, "ada", auth.Client{Subject: "bob", Access: auth.AccessRead}, 0, true},
		{"a writer was there", auth.Client{}, "ada", auth.Client{Subject: "bob"}, ahp.CodePermissionDenied, false},
		{"a writer was there, but she lets be asked", auth.Client{Reverse: true}, "ada", auth.Client{Subject: "bob"}, 0, true},
		{"another asks", auth.Client{}, "bob", auth.Client{}, ahp.CodePermissionDenied, false},
		{"another asks, though she lets be asked", auth.Client{Reverse: true}, "bob", auth.Client{}, ahp.CodePermissionDenied, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := startStack(t, stack.Config{Upstream: hostURL(t)})
			c.ada.Subject = "ada"
			ada := &person{t: t, s: s, who: c.ada, file: "ada's file"}
			asker := ada
			if c.asks == "bob" {
				asker = &person{t: t, s: s, who: auth.Client{Subject: "bob"}}
			}
			if c.other.Subject != "" {
				other := (&person{t: t, s: s, who: c.other}).dial(nil)
				if code := codeOf(t, other, "initialize", greeting("initialize", unique("other"))); code != 0 {
					t.Fatalf("the other client's initialize: error code %d; want 0", code)
				}
				_ = other.Close()
			}
			var asked atomic.Int32
			id := unique("Files") // hosts may change the case of a clientId
			if code := codeOf(t, ada.dial(&asked), "initialize", greeting("initialize", id)); code != 0 {
				t.Fatalf("ada's initialize: error code %d; want 0", code)
			}
			conn := asker.dial(nil)
			if code := codeOf(t, conn, "initialize", greeting("initialize", unique("asker"))); code != 0 {
				t.Fatalf("the asker's initialize: error code %d; want 0", code)
			}
			file := "vscode-agent-client://" + url.PathEscape(id) + "/file/-/tmp/a.txt"
			code := codeOf(t, conn, "resourceRead", map[string]any{"channel": "ahp-root://", "uri": file})
			if code != c.want {
				t.Errorf("code %d; want %d", code, c.want)
			}
			if (asked.Load() > 0) != c.reaches {
				t.Errorf("ada's client was asked %d times; want it asked: %v", asked.Load(), c.reaches)
			}
			if c.asks == "bob" {
				for _, uri := range []string{strings.ToUpper(file), strings.ReplaceAll(file, "-", "%2D"), strings.ReplaceAll(file, "//", "//x@")} {
					for _, method := range []string{"resourceRead", "resourceList", "resourceResolve", "createResourceWatch", "subscribe"} {
						code := codeOf(t, conn, method, map[string]any{"channel": uri, "uri": uri})
						if code != ahp.CodePermissionDenied {
							t.Errorf("%s %s: code %d; want %d", method, uri, code, ahp.CodePermissionDenied)
						}
					}
				}
				if asked.Load() > 0 {
					t.Error("a foreign request has reached ada's client; want none")
				}
			}
		})
	}
}

// TestOwnerEndsAConnection lets the owner list the host's clients and end a client's
// connection. It ends within a second.
func TestOwnerEndsAConnection(t *testing.T) {
	t.Parallel()
	cfg := stack.Config{Upstream: hostURL(t)}
	dir, err := os.MkdirTemp("", "c") // short, because a socket's path has a limit
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg.Agent.Control = filepath.Join(dir, "s")
	cfg.Agent.Upstream.URL = cfg.Upstream // without the tap, so the host gets the caller's headers
	s := startStack(t, cfg)
	bob := &person{t: t, s: s, who: auth.Client{Subject: "bob", Access: auth.AccessRead}}
	c := bob.dial(nil)
	id := unique("bob")
	if code := codeOf(t, c, "initialize", greeting("initialize", id)); code != 0 {
		t.Fatalf("bob's initialize: error code %d; want 0", code)
	}
	control := hostagent.Control{Path: cfg.Agent.Control}
	var list hostagent.Clients
	for deadline := time.Now().Add(stepTime); ; time.Sleep(time.Millisecond) {
		if list, err = control.Clients(t.Context()); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if len(list.Clients) != 1 || list.Clients[0].Subject != "bob" || list.Clients[0].ClientID != id || list.Clients[0].Access != "read" ||
		list.Clients[0].FramesIn != 1 || list.Clients[0].Address == "" || list.Clients[0].Relay == "" {
		t.Fatalf("the clients are %+v; want bob's connection with one message", list)
	}
	start := time.Now()
	if n, err := control.Kick(t.Context(), hostagent.Kick{Conn: list.Clients[0].ID, For: time.Hour}); n != 1 || err != nil {
		t.Fatalf("Kick of a connection = %d, %v; want 1", n, err)
	}
	awaitClosed(t, c, ahp.CloseForbidden, "forbidden: the host's owner does not want this client")
	t.Logf("closed after %v", time.Since(start).Round(100*time.Microsecond))
	if n, err := control.Kick(t.Context(), hostagent.Kick{Subject: "bob", For: time.Hour}); n != 0 || err != nil {
		t.Fatalf("Kick of a subject = %d, %v; want 0", n, err)
	}
	again := bob.dial(nil)
	awaitClosed(t, again, ahp.CloseForbidden, "forbidden: the host's owner does not want this client, until")
	ada := &person{t: t, s: s, who: auth.Client{Subject: "ada"}}
	if code := codeOf(t, ada.dial(nil), "initialize", greeting("initialize", unique("ada"))); code != 0 {
		t.Errorf("ada's initialize: error code %d; want 0", code)
	}
}

// enrol enrols a stack's host, and returns the name of the credentials file.
func enrol(t *testing.T, s *stack.Stack) string {
	t.Helper()
	token, err := s.HostToken(stack.Host)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "credential")
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	if _, _, _, err := hostagent.Enroll(ctx, hostagent.Enrolment{Relays: []string{s.Relay.URL()}, Token: token, File: file}); err != nil {
		t.Fatal(err)
	}
	return file
}

// A host-agent renews its credential while a client is connected. The client's
// connection stays open.
func TestCredentialRenewalIsInvisible(t *testing.T) {
	t.Parallel()
	cfg := stack.Config{Upstream: hostURL(t)}
	cfg.Relay.Gateway.CredentialTTL = 24 * time.Second // renewed after a third of this
	var file string
	s := startStackWith(t, cfg, func(s *stack.Stack, agent *hostagent.Config) (err error) {
		file = enrol(t, s)
		agent.Token = nil
		agent.Credentials, err = hostagent.OpenCredentialFile(file)
		return err
	})
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	ada := &person{t: t, s: s, who: auth.Client{Subject: "ada"}}
	c := ada.dial(nil)
	if code := codeOf(t, c, "initialize", greeting("initialize", unique("ada"))); code != 0 {
		t.Fatalf("ada's initialize: error code %d; want 0", code)
	}
	revoked := func() (n int) { return len(s.Relay.Revocations().List()) }
	had := revoked()
	for deadline := time.Now().Add(2 * stepTime); ; time.Sleep(10 * time.Millisecond) {
		now, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(now) != string(before) && revoked() >= had+2 { // the relay has revoked the previous credential and recorded the new one
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the credential is not renewed, or the old one not revoked, in time; want both")
		}
	}
	for range 3 {
		if code := codeOf(t, c, "ping", map[string]any{"channel": "ahp-root://"}); code != 0 {
			t.Errorf("ping after the renewal: error code %d; want none", code)
		}
	}
	if err := c.Err(); err != nil {
		t.Errorf("the client's connection ended with the renewal: %v; want it open", err)
	}
}

// TestEnrolmentIsUsedOnce enrols a host with a token at one relay. The same token is
// then refused at both relays of the cluster.
func TestEnrolmentIsUsedOnce(t *testing.T) {
	t.Parallel()
	dir, first, second := t.TempDir(), natssite.FreePort(t), natssite.FreePort(t)
	start := func(dir, listen string) *gateway.Relay {
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		r, err := gateway.StartRelay(ctx, gateway.RelayConfig{
			DataDir: dir, Listen: "127.0.0.1:0", AdminListen: gateway.NoListener,
			ClusterListen: listen, ClusterRoutes: []string{first, second},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		return r
	}
	relays := []*gateway.Relay{start(dir, first), start(copyKeys(t, dir), second)}
	token, err := relays[0].Keys().Tokens().IssueHost(auth.Enrolment{Tenant: "default", Host: "laptop", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	enroll := func(r *gateway.Relay) error {
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		_, _, _, err := hostagent.Enroll(ctx, hostagent.Enrolment{
			Relays: []string{r.URL()}, Token: token, File: filepath.Join(t.TempDir(), "credential"),
		})
		return err
	}
	if err := enroll(relays[0]); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(stepTime); len(relays[1].Revocations().List()) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the second relay does not learn that the token was used; want its revocation")
		}
	}
	for n, r := range relays {
		if err := enroll(r); err == nil || !strings.Contains(err.Error(), "token revoked") {
			t.Errorf("once more at relay %d: %v; want a refusal", n+1, err)
		}
	}
}
