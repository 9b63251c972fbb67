package gateway

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/canvas"
	"ahprelay/internal/unauthenticated"
	"ahprelay/routing"
)

// A client requests a canvas ticket while the host-agent is away, and while it is too
// old or its host is sealed. Each error gives this reason.
func TestRefusedTicketHasAReason(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		testRefusedTicket(t, sealed)
	}
}

func testRefusedTicket(t *testing.T, sealed bool) {
	inWorld(t, Config{CanvasDomain: "canvas.example.com"}, func(w *world) {
		w.seals = sealed
		ask := func(want string) {
			t.Helper()
			env, err := ahp.Peek([]byte(`{"id":1,"method":"relay/canvasTicket","params":{"channel":"ahp-canvas:/c","uri":"ahp-canvas-content:/i/"}}`))
			if err != nil {
				t.Fatal(err)
			}
			answer, err := w.server.canvases.Answer(&env, canvas.Asker{Grant: func(channel string) (auth.CanvasGrant, error) {
				return auth.CanvasGrant{Tenant: testTenant, CanvasClaims: auth.CanvasClaims{Host: testHost, Channel: channel}}, nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			result, err := answer(w.Context())
			said := string(canvas.AppendAnswer(nil, env.ID, result, err))
			if !strings.Contains(said, want) || !strings.Contains(said, `"code":`+strconv.Itoa(ahp.CodeHostOffline)) {
				t.Errorf("the client gets %s; want code %d and %q", said, ahp.CodeHostOffline, want)
			}
		}
		ask(canvas.ErrHostAway.Error())
		w.startAgent(routing.AgentEndConfig{})
		if sealed {
			ask(canvas.ErrSealed.Error())
		} else {
			ask(canvas.ErrOldAgent.Error())
		}
	})
}

// TestCanvasDomainLowersBoundOfUnauthenticatedConnections: a relay with a canvas domain
// accepts longer headers, and therefore fewer unauthenticated connections.
func TestCanvasDomainLowersBoundOfUnauthenticatedConnections(t *testing.T) {
	for domain, want := range map[string]unauthenticated.Bounds{"": httpBounds, "canvas.example.com": longHeaderBounds} {
		inWorld(t, Config{CanvasDomain: domain}, func(w *world) {
			if got := w.server.httpConns.table.Bounds; got != want {
				t.Errorf("with the canvas domain %q, the bounds of unauthenticated connections are %v; want %v", domain, got, want)
			}
		})
	}
}

// TestMovedClientGetsTickets: a client sent its initialize through a different relay,
// so this relay lacks its clientId. The client gets a ticket once the host-agent has
// reported the clientId.
func TestMovedClientGetsTickets(t *testing.T) {
	inWorld(t, Config{CanvasDomain: "canvas.example.com"}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		w.dial(w.token(nil)).send(`{"jsonrpc":"2.0","method":"unknown"}`)
		synctest.Wait()
		host := w.hostConn(1)
		c := w.server.hosts.all()[0]
		if _, err := c.tickets.grant(c, "ahp-canvas:/c"); err != canvas.ErrNoClientID {
			t.Errorf("before: %v; want %v", err, canvas.ErrNoClientID)
		}
		host.conn.Report(func() routing.Report { return routing.Report{Conn: host.open.ID, ClientID: "phone"} })
		time.Sleep(time.Second)
		synctest.Wait()
		grant, err := c.tickets.grant(c, "ahp-canvas:/c")
		if err != nil || grant.ClientID != "phone" {
			t.Errorf("the ticket's grant is for the clientId %q, %v; want phone", grant.ClientID, err)
		}
	})
}

// Clients request canvas tickets. The session of a client with its own connection
// outlives the client's token, and the host-agent ends it with the client. A viewer
// shares its connection, so the viewer's session ends with the token.
func TestCanvasSessionOutlivesTheToken(t *testing.T) {
	for _, test := range []struct {
		name     string
		change   func(*auth.Client)
		lifetime time.Duration
	}{
		{"short token", nil, auth.CanvasSessionTTL},
		{"long token", func(c *auth.Client) { c.Expires = time.Now().Add(2 * auth.CanvasSessionTTL) }, 2 * auth.CanvasSessionTTL},
		{"viewer", func(c *auth.Client) { c.Access, c.Audience, c.Subject = auth.AccessRead, "link-1", "bob" }, time.Hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			inWorld(t, Config{CanvasDomain: "canvas.example.com"}, func(w *world) {
				w.startAgent(routing.AgentEndConfig{})
				begin := time.Now()
				w.dial(w.token(lasting(time.Hour, test.change))).send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"a","protocolVersions":["1.0.0"]}}`)
				synctest.Wait()
				w.hostConn(1)
				c := w.server.hosts.all()[0]
				grant, err := c.tickets.grant(c, "ahp-canvas:/c")
				if err != nil {
					t.Fatal(err)
				}
				if got := grant.Expires.Sub(begin); got < test.lifetime-time.Second || got > test.lifetime+time.Second || grant.Until != grant.Expires.Unix() {
					t.Errorf("the session lasts %v, until %d; want %v", got, grant.Until, test.lifetime)
				}
				token := c.token.now()
				if !grant.TokenExpires().Equal(token.Expires) {
					t.Errorf("the token expires at %v; want %v", grant.TokenExpires(), token.Expires)
				}
			})
		})
	}
}
