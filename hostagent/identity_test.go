package hostagent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/routing"
)

func greeting(method, clientID string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{"channel":"ahp-root://","clientId":%q}}`, method, clientID)
}

// of returns what a relay sends when a client of the subject connects with write access.
func of(subject string) routing.Open {
	return routing.Open{ID: "c-" + subject, Subject: subject, Access: "write", Token: "t-" + subject, Remote: "10.0.0.1:1"}
}

func (r *remote) said() (got string, code ahp.CloseCode) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got.String(), r.code
}

// TestForeignClientIDIsRefused connects ada, and then bob with ada's clientId, at two relays. The
// host-agent must refuse and close bob each time; ada may use the clientId at either relay.
func TestForeignClientIDIsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		relay2 := w.link(w.life, "relay2")
		w.openAs(w.relay, of("ada")).send(greeting("initialize", "one"))
		for n, relay := range []*routing.RelayEnd{w.relay, relay2} {
			for _, method := range []string{"initialize", "reconnect"} {
				bob := w.openAs(relay, of("bob"))
				hostSide := w.hostSide()
				bob.send(greeting(method, "one"))
				if got, code := bob.said(); !strings.Contains(got, "-32009") || code != ahp.CloseForbidden {
					t.Errorf("relay %d, %s: bob got %q and close %d; want an error and 4503", n+1, method, got, code)
				}
				if got := hostSide.messages(); len(got) > 0 || !hostSide.isClosed() {
					t.Errorf("relay %d, %s: the host got %q; want nothing, and the connection closed", n+1, method, got)
				}
			}
		}
		ada := w.openAs(relay2, of("ada"))
		ada.send(greeting("reconnect", "one"))
		if got, code := ada.said(); strings.Contains(got, "error") || code != 0 {
			t.Errorf("ada, through a different relay, got %q and close code %d; want no error and no close", got, code)
		}
	})
}

// TestFilesAreNotAsked has the host request a client's file. Ada gets the request while she is
// alone. While bob is connected, too, the host-agent must refuse it itself.
func TestFilesAreNotAsked(t *testing.T) {
	const question = `{"jsonrpc":"2.0","id":7,"method":"resourceRead","params":{"uri":"file:///x"}}`
	inWorld(t, func(w *world) {
		ada := w.openAs(w.relay, of("ada"))
		hostSide := w.hostSide()
		ada.send(greeting("initialize", "one"))
		hostSide.toUs <- question
		if got, _ := ada.said(); !strings.Contains(got, question) {
			t.Errorf("alone, ada got %q; want the host's request", got)
		}
		w.openAs(w.relay, of("bob"))
		before, _ := ada.said()
		hostSide.toUs <- question
		if got, _ := ada.said(); got != before {
			t.Errorf("with bob connected, ada got %q in addition; want nothing", got[len(before):])
		}
		if got := hostSide.messages(); !strings.Contains(got[len(got)-1], `"id":7,"error":{"code":-32009`) {
			t.Errorf("the host got %q; want a refusal as the last message", got)
		}
	})
}

// TestAllowLimitsClients sends requests with full authority from the relay. Only those within the
// owner's limits (Config.Allow) may reach the host.
func TestAllowLimitsClients(t *testing.T) {
	const create = `{"jsonrpc":"2.0","id":5,"method":"createSession","params":{"channel":"mock:/1"}}`
	const list = `{"jsonrpc":"2.0","id":6,"method":"listSessions","params":{"channel":"ahp-root://"}}`
	for _, c := range []struct {
		name   string
		allow  gate.Policy
		passes []string // the requests that must reach the host
	}{
		{"everything", gate.NewPolicy(auth.AccessAdmin, nil, nil, true), []string{create, list}},
		{"read", gate.NewPolicy(auth.AccessRead, nil, nil, true), []string{list}},
		{"methods", gate.NewPolicy(auth.AccessAdmin, nil, []string{"create*"}, true), []string{create}},
		{"channels", gate.NewPolicy(auth.AccessAdmin, []string{"mock:/1"}, nil, true), []string{create, list}},
		{"other channels", gate.NewPolicy(auth.AccessAdmin, []string{"mock:/2"}, nil, true), []string{list}},
	} {
		inWorld(t, func(w *world) {
			w.agent.cfg.Allow = &c.allow
			ada := of("ada")
			ada.Access = "admin"
			r := w.openAs(w.relay, ada)
			hostSide := w.hostSide()
			for _, m := range []string{create, list} {
				r.send(m)
			}
			if got := hostSide.messages(); !slices.Equal(got, c.passes) {
				t.Errorf("%s: the host got %q; want %q", c.name, got, c.passes)
			}
			if got := w.agent.list().Clients; len(got) != 1 || got[0].Access != string(c.allow.Access) || got[0].Refused != int64(2-len(c.passes)) {
				t.Errorf("%s: the clients are %+v; want one, with its level and the number of refused messages", c.name, got)
			}
		})
	}
}

// TestOnlyNamedSubjectsApprove sends approvals, and actions with the effect of an approval. Only
// subjects in ApproveOnly may do this; everyone may send a chat message.
func TestOnlyNamedSubjectsApprove(t *testing.T) {
	say := func(action string) string {
		return `{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"mock:/1","clientSeq":1,"action":` + action + `}}`
	}
	talk := say(`{"type":"chat/turnStarted","message":{"text":"hello"}}`)
	messages := []string{
		talk, say(`{"type":"chat/toolCallConfirmed","turnId":"1","toolCallId":"1","approved":true}`),
		say(`{"type":"session/configChanged","config":{"autoApprove":true}}`), say(`{"type":"chat/turnStarted","message":{"text":"!ls"}}`),
		`{"jsonrpc":"2.0","id":5,"method":"createTerminal","params":{"channel":"t:/1"}}`,
	}
	for subject, passes := range map[string][]string{"ada": messages, "ada@login.example.com": messages, "bob": {talk}, "Ada": {talk}} {
		inWorld(t, func(w *world) {
			w.agent.cfg.ApproveOnly = []string{"ada", "*@login.example.com"}
			who := of(subject)
			who.Access = "admin"
			r := w.openAs(w.relay, who)
			hostSide := w.hostSide()
			for _, m := range messages {
				r.send(m)
			}
			if got := hostSide.messages(); !slices.Equal(got, passes) {
				t.Errorf("from %s, the host got %q; want %q", subject, got, passes)
			}
		})
	}
}

// TestHostAgentAnswersInPlaceOfClients sets NoReverse. The host-agent must then refuse the host's
// request for a client's file itself, and the client must not get it.
func TestHostAgentAnswersInPlaceOfClients(t *testing.T) {
	inWorld(t, func(w *world) {
		w.agent.cfg.NoReverse = true
		ada := of("ada")
		ada.Reverse = true
		r := w.openAs(w.relay, ada)
		hostSide := w.hostSide()
		hostSide.toUs <- `{"jsonrpc":"2.0","id":7,"method":"resourceRead","params":{"uri":"file:///x"}}`
		if got := hostSide.messages(); len(got) != 1 || !strings.Contains(got[0], "-32009") {
			t.Errorf("the host got %q; want a refusal of its request for ada's file", got)
		}
		if got, _ := r.said(); got != "" {
			t.Errorf("ada got the host's request %q; want nothing", got)
		}
	})
}

func TestForeignFileIsRefused(t *testing.T) {
	inWorld(t, func(w *world) {
		w.openAs(w.relay, of("ada")).send(greeting("initialize", "one"))
		bob := w.openAs(w.relay, of("bob"))
		hostSide := w.hostSide()
		bob.send(greeting("initialize", "two"))
		bob.send(`{"jsonrpc":"2.0","id":5,"method":"resourceRead","params":{"uri":"vscode-agent-client://ONE/file/-/x"}}`)
		if got, code := bob.said(); !strings.Contains(got, `"id":5,"error":{"code":-32009`) || code != 0 {
			t.Errorf("for ada's file, bob got %q and close %d; want a refusal", got, code)
		}
		if got := hostSide.messages(); len(got) != 1 {
			t.Errorf("the host got %q; want only the initialize", got)
		}
	})
}

// TestKickedClientsCannotReturn kicks a subject and a connection. The host-agent must close their
// clients at once, and refuse them until the kick's time is over.
func TestKickedClientsCannotReturn(t *testing.T) {
	inWorld(t, func(w *world) {
		ada, bob, bob2 := w.openAs(w.relay, of("ada")), w.openAs(w.relay, of("bob")), w.openAs(w.relay, of("bob"))
		if ended, err := w.agent.kick(Kick{Subject: "nobody"}); ended != 0 || err != errNobody {
			t.Errorf("kick of an unknown subject = %d connections, %v; want 0, errNobody", ended, err)
		}
		if ended, err := w.agent.kick(Kick{Subject: "bob", For: time.Hour}); ended != 2 || err != nil {
			t.Errorf("kick of bob ended %d connections, %v; want 2", ended, err)
		}
		for _, r := range []*remote{bob, bob2} {
			r.wantClosed(ahp.CloseForbidden, kickedReason)
		}
		again := w.openAs(w.relay, of("bob"))
		if _, code := again.said(); code != ahp.CloseForbidden {
			t.Errorf("bob connected while he was blocked: close %d; want 4503", code)
		}
		if w.agent.subjects.Enter(gate.User{Subject: "x"}); len(w.agent.list().Blocked) != 1 {
			t.Errorf("the blocked subjects are %v; want bob", w.agent.list().Blocked)
		}
		if _, code := ada.said(); code != 0 {
			t.Errorf("ada was closed with %d after bob's kick; want her connected", code)
		}
		if ended, err := w.agent.kick(Kick{Conn: "c-ada", For: time.Minute}); ended != 1 || err != nil {
			t.Errorf("kick of ada's token ended %d connections, %v; want 1", ended, err)
		}
		if _, code := w.openAs(w.relay, of("ada")).said(); code != ahp.CloseForbidden {
			t.Errorf("ada connected with the blocked token: close %d; want 4503", code)
		}
		other := of("ada")
		other.Token = "another"
		if _, code := w.openAs(w.relay, other).said(); code != 0 {
			t.Errorf("ada with a different token: close %d; want her connected", code)
		}
		time.Sleep(time.Hour)
		if _, code := w.openAs(w.relay, of("bob")).said(); code != 0 {
			t.Errorf("bob after his block has ended: close %d; want him connected", code)
		}
		if got := w.agent.list(); len(got.Clients) != 2 || len(got.Blocked) != 0 {
			t.Errorf("the listed clients are %+v; want ada's second and bob's connection", got)
		}
	})
}

func TestBlocklistIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b blocklist
		for n := range maxBlocked {
			if err := b.add(blockedKey{subject: fmt.Sprint(n)}, time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.add(blockedKey{subject: "one more"}, time.Now().Add(time.Minute)); err != errTooManyBlocked {
			t.Errorf("a block above the bound: %v; want errTooManyBlocked", err)
		}
		if err := b.add(blockedKey{subject: "0"}, time.Now().Add(time.Hour)); err != nil {
			t.Errorf("a longer block of a blocked subject: %v; want no error", err)
		}
		time.Sleep(time.Minute)
		if err := b.add(blockedKey{subject: "one more"}, time.Now().Add(time.Minute)); err != nil || len(b.list()) != 2 {
			t.Errorf("a block after the first has ended: %v, with %d blocked subjects; want no error, and 2", err, len(b.list()))
		}
	})
}

// TestRepeatedAuditLinesAreCoalesced connects a client 100 times and sends a forbidden request each
// time. The log must have the first lines and then a line with the count. Another client's lines
// must stay separate.
func TestRepeatedAuditLinesAreCoalesced(t *testing.T) {
	inWorld(t, func(w *world) {
		var log bytes.Buffer
		w.agent.cfg.Log = slog.New(slog.NewJSONHandler(&log, nil))
		visit := func(subject string) {
			who := of(subject)
			who.Access = "read"
			c := w.openAs(w.relay, who)
			c.send(`{"jsonrpc":"2.0","id":1,"method":"createSession","params":{"channel":"secret:/x"}}`)
			synctest.Wait()
			c.conn.Close(1000, "bye")
			synctest.Wait()
		}
		const times = 100
		for range times {
			visit("guest")
		}
		visit("ada")
		synctest.Wait()
		time.Sleep(auditEvery)
		synctest.Wait()
		lines, counts := map[string]int{}, map[string]int{}
		for text := range strings.Lines(log.String()) {
			var line struct {
				Msg, Event, Subject string
				Count               int
			}
			if err := json.Unmarshal([]byte(text), &line); err != nil {
				t.Fatal(err)
			}
			if line.Msg == auditMessage {
				lines[line.Subject+" "+line.Event]++
				counts[line.Subject+" "+line.Event] += max(1, line.Count)
			}
		}
		want := map[string]int{"guest connect": connectsAtOnce + 1, "guest disconnect": connectsAtOnce + 1, "guest refuse": refusedAtOnce + 1, "ada connect": 1, "ada refuse": 1, "ada disconnect": 1}
		if diff := cmp.Diff(want, lines); diff != "" {
			t.Errorf("the audit lines (-want +got):\n%s", diff)
		}
		want = map[string]int{"guest connect": times, "guest disconnect": times, "guest refuse": times, "ada connect": 1, "ada refuse": 1, "ada disconnect": 1}
		if diff := cmp.Diff(want, counts); diff != "" {
			t.Errorf("events counted by the lines (-want +got):\n%s", diff)
		}
	})
}

// TestEachAuditedEventHasOneLine connects, refuses and kicks clients. The log must have the wanted
// line for each event, and no content of a message.
func TestEachAuditedEventHasOneLine(t *testing.T) {
	inWorld(t, func(w *world) {
		var log bytes.Buffer
		w.agent.cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}}))
		ada := w.openAs(w.relay, of("ada"))
		ada.send(greeting("initialize", "one"))
		reader := of("cleo")
		reader.Access = "read"
		cleo := w.openAs(w.relay, reader)
		for range 3 {
			cleo.send(`{"jsonrpc":"2.0","id":1,"method":"createSession","params":{"channel":"secret:/x"}}`)
		}
		w.openAs(w.relay, of("bob")).send(greeting("initialize", "one"))
		if _, err := w.agent.kick(Kick{Conn: "c-ada", For: time.Minute}); err != nil {
			t.Fatal(err)
		}
		w.openAs(w.relay, of("ada"))
		cleo.conn.Close(1000, "bye")
		synctest.Wait()
		want := []string{
			`conn=c-ada subject=ada event=connect relay=relay1 access=write token=t-ada address=10.0.0.1:1`,
			`conn=c-cleo subject=cleo event=connect relay=relay1 access=read token=t-cleo address=10.0.0.1:1`,
			`conn=c-cleo subject=cleo event=refuse method=createSession`,
			`conn=c-bob subject=bob event=connect relay=relay1 access=write token=t-bob address=10.0.0.1:1`,
			`conn=c-bob subject=bob event=refuse method=initialize reason="the clientId is not this token's" code=4503`,
			`conn=c-bob subject=bob event=disconnect`,
			`conn=c-ada subject=ada event=kick code=4503`,
			`conn=c-ada subject=ada event=disconnect`, // the relay may have confirmed the close by then, or not
			`conn=c-ada subject=ada event=refuse reason="the host's owner does not want this client, until `,
			`conn=c-cleo subject=cleo event=disconnect code=1000 reason=bye`,
		}
		var got []string
		for line := range strings.Lines(log.String()) {
			if rest, ok := strings.CutPrefix(line, "msg=audit "); ok {
				got = append(got, strings.TrimSpace(rest))
			}
		}
		if len(got) != len(want) || slices.ContainsFunc(want, func(line string) bool {
			return !slices.ContainsFunc(got, func(g string) bool { return strings.HasPrefix(g, line) })
		}) {
			t.Errorf("audit:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if strings.Contains(log.String(), "secret") {
			t.Error("the log contains a message's content; want none")
		}
	})
}

// TestHostLearnsCaller fails unless the headers for a host at a URL, and the variables for a host
// that is a command, name the client.
func TestHostLearnsCaller(t *testing.T) {
	who := &caller{tenant: "default", subject: "ada Løve\n%", access: "read", conn: "c1"}
	header := who.header()
	for name, want := range map[string]string{
		"Ahp-Relay-Subject": "ada%20L%C3%B8ve%0A%25", "Ahp-Relay-Tenant": "default", "Ahp-Relay-Access": "read", "Ahp-Relay-Connection": "c1",
	} {
		if got := header[name]; !slices.Equal(got, []string{want}) {
			t.Errorf("header %s is %q; want %q", name, got, want)
		}
	}
	t.Setenv("AHP_REMOTE_SUBJECT", "eve")
	t.Setenv("Ahp_Remote_Tenant", "eve")
	t.Setenv("OTHER", "x")
	own := strings.Join((*caller)(nil).environment(), "\n")
	if !strings.Contains(own, "OTHER=x") || strings.Contains(own, "eve") {
		t.Error("the host's command, started without a client, must get the host-agent's environment without a caller")
	}
	env := who.environment()
	for _, want := range []string{"AHP_REMOTE_SUBJECT=ada%20L%C3%B8ve%0A%25", "AHP_REMOTE_TENANT=default", "AHP_REMOTE_ACCESS=read", "AHP_REMOTE_CONNECTION=c1"} {
		if !slices.Contains(env, want) {
			t.Errorf("the command's environment lacks %s; want it", want)
		}
	}
	if strings.Contains(strings.Join(env, "\n"), "eve") {
		t.Error("the host's command gets a caller variable that the host-agent itself has inherited; want none")
	}
}

// TestDialSendsCaller opens connections to a host for a client and for the host-agent itself. Only
// the handshake for the client may have the caller's headers.
func TestDialSendsCaller(t *testing.T) {
	got := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		http.Error(w, "no", http.StatusTeapot)
	}))
	defer server.Close()
	a := &Agent{cfg: Config{Upstream: Upstream{URL: wsURL(server)}, MaxFrame: 1000}, subjects: gate.NewSubjects()}
	for _, who := range []*caller{nil, {subject: "ada"}} {
		_, _ = a.dialForClient(t.Context(), who)
		_, told := (<-got)["Ahp-Relay-Subject"]
		if told != (who != nil) {
			t.Errorf("with the caller %v, the handshake to the host has the header Ahp-Relay-Subject: %v; want it only with a caller", who, told)
		}
	}
}

// TestEndOfAHostIsDistinguished dials upstreams that fail in different ways. isRefused must be true
// only if no program listens at the address.
func TestEndOfAHostIsDistinguished(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := listener.Addr().String()
	_ = listener.Close()
	refuses := httptest.NewServer(http.NotFoundHandler())
	defer refuses.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	file := filepath.Join(t.TempDir(), "token")
	for _, c := range []struct {
		what     string
		upstream Upstream
		want     bool
	}{
		{"nothing listens", Upstream{URL: "ws://" + closed}, true},
		{"no socket", Upstream{URL: "unix:" + filepath.Join(t.TempDir(), "none")}, true},
		{"refuses", Upstream{URL: wsURL(refuses)}, false},
		{"hangs", Upstream{URL: "ws://" + silent.Addr().String()}, false},
		{"no token file", Upstream{URL: "ws://" + closed, TokenFile: file}, false},
		{"no name", Upstream{URL: "ws://host.invalid"}, false},
		{"no program", Upstream{Command: []string{filepath.Join(t.TempDir(), "none")}}, false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), dialTime(c.what == "hangs"))
		_, err := c.upstream.dial(ctx, 1000)
		cancel()
		if err == nil || isRefused(err) != c.want {
			t.Errorf("%s: isRefused of %v = %v; want %v", c.what, err, !c.want, c.want)
		}
	}
}

// TestControlSocketAnswersTheOwner sends requests through the control socket. A second host-agent
// then takes the socket over: the end of the first host-agent must not remove the socket.
func TestControlSocketAnswersTheOwner(t *testing.T) {
	a := &Agent{
		cfg:    Config{Log: slog.New(slog.DiscardHandler), Control: filepath.Join(t.TempDir(), "c.sock")},
		access: &access{tenant: "default", host: "laptop", instance: "agent1"},
	}
	a.live = newLive(a)
	control := Control{a.cfg.Control}
	if _, err := control.Clients(t.Context()); err == nil || !strings.Contains(err.Error(), ErrNoAgent.Error()) {
		t.Errorf("Clients without a host-agent = %v; want ErrNoAgent", err)
	}
	serve := func() (stop func()) {
		former, _ := os.Lstat(control.Path)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { a.serveControl(ctx); close(done) }()
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			now, err := os.Lstat(control.Path)
			if err == nil && !os.SameFile(former, now) {
				return func() { cancel(); <-done }
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	stop := serve()
	info, err := os.Stat(control.Path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v, %v; want 0600", info.Mode(), err)
	}
	list, err := control.Clients(t.Context())
	if err != nil || list.Host != "laptop" || list.Agent != "agent1" || len(list.Clients) != 0 {
		t.Errorf("Clients = %+v, %v; want the laptop's agent1 without clients", list, err)
	}
	if _, err := control.Kick(t.Context(), Kick{Conn: "c1"}); err == nil || !strings.Contains(err.Error(), errNobody.Error()) {
		t.Errorf("kicking an unknown connection: %v; want errNobody", err)
	}
	if n, err := control.Kick(t.Context(), Kick{Subject: "bob", For: time.Hour}); n != 0 || err != nil {
		t.Errorf("Kick of a subject without connections = %d, %v; want 0, and no error", n, err)
	}
	for _, bad := range []Kick{{}, {Conn: "c", Subject: "s"}, {Conn: "c", For: -1}} {
		if _, err := control.Kick(t.Context(), bad); err == nil || !strings.Contains(err.Error(), "want JSON") {
			t.Errorf("kick with %+v: %v; want an error", bad, err)
		}
	}
	if list, _ := control.Clients(t.Context()); len(list.Blocked) != 1 || list.Blocked[0].Subject != "bob" {
		t.Errorf("the listed blocked subjects are %+v; want bob", list.Blocked)
	}
	stop2 := serve() // another host-agent takes the socket over
	stop()
	if _, err := control.Clients(t.Context()); err != nil {
		t.Errorf("after the end of the first host-agent, Clients = %v; want an answer from the second", err)
	}
	stop2()
	if _, err := os.Lstat(control.Path); err == nil {
		t.Error("the control socket exists after the host-agent's end; want it removed")
	}
	if err := os.WriteFile(control.Path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ListenPrivate(control.Path); err == nil {
		t.Error("ListenPrivate replaced a file by a socket; want an error")
	}
}

func TestControlPath(t *testing.T) {
	dir, err := os.MkdirTemp("", "c") // the path is short, because a socket's path is bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("TMPDIR", t.TempDir()) // no sockets of other host-agents are there
	if _, err := FindControl("default", ""); err == nil || !strings.Contains(err.Error(), "--control") {
		t.Errorf("FindControl without a socket = %v; want an error that names --control", err)
	}
	paths := map[string]bool{}
	for _, host := range []string{"a", "b", strings.Repeat("x", 63)} {
		path, err := ControlPath(nil, []string{"https://relay.example.com:8443"}, "default", host)
		if err != nil || len(path) > maxSocketPath || paths[path] || strings.Contains(filepath.Base(path), ":") {
			t.Fatalf("ControlPath = %q, %v; want a short path that no other host has, without a colon, which Windows refuses", path, err)
		}
		paths[path] = true
	}
	first, _ := ControlPath(nil, []string{"https://relay.example.com:8443"}, "default", "a")
	l, remove, err := ListenPrivate(first)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	crashed, _ := ControlPath(nil, []string{"https://relay.example.com:8443"}, "default", "b")
	gone, _, err := ListenPrivate(crashed)
	if err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()
	if got, err := FindControl("default", ""); got != first || err != nil {
		t.Errorf("FindControl = %q, %v; want %q", got, err, first)
	}
	other, _, err := ListenPrivate(crashed)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := FindControl("default", ""); err == nil || !strings.Contains(err.Error(), "--host") {
		t.Errorf("FindControl without a host, with two sockets = %v; want an error that names --host", err)
	}
	if got, err := FindControl("default", "b"); got != crashed || err != nil {
		t.Errorf("FindControl with the host b = %q, %v; want %q", got, err, crashed)
	}
	// A service has its own runtime directory, which differs from that of the user's shell.
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	who, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer func(dir string) { unitDirs = dir }(unitDirs)
	unitDirs = filepath.Join(dir, "run")
	if err := os.MkdirAll(unitDirs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(unitDirs, "ahp-host-agent-"+who.Username)); err != nil {
		t.Fatal(err)
	}
	if got, err := FindControl("default", "b"); err != nil || filepath.Base(got) != filepath.Base(crashed) {
		t.Errorf("FindControl of a crashed unit = %q, %v; want its socket", got, err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
	remove()
	if err := os.Chmod(filepath.Join(dir, "ahp-host-agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := ControlPath(nil, []string{"https://relay.example.com:8443"}, "default", "a"); err == nil {
		t.Error("ControlPath accepts a directory that other users can read; want an error")
	}
}
