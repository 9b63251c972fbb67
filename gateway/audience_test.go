package gateway

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/gateway/wire"
	"ahprelay/routing"
)

// Two clients with tokens for the same audience share a connection to the host. The
// connection ends after its last client has left, and a later client gets a new
// connection.
func TestClientsOfAnAudienceShareAConnection(t *testing.T) {
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentEndConfig{})
		token := w.token(func(c *auth.Client) { c.Access, c.Audience, c.Subject = auth.AccessRead, "link-1", "bob" })
		hello := func(id string) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":%q,"protocolVersions":["1.0.0"]}}`, id)
		}
		a, b := w.dial(token), w.dial(token)
		a.send(hello("a"))
		b.send(hello("b"))
		h := w.hostConn(1)
		if synctest.Wait(); h.open.Subject != "link-1" || len(h.messages()) != 1 {
			t.Fatalf("the connection to the host has subject %q, and the host got %q; want link-1, and one message", h.open.Subject, h.messages())
		}
		h.send(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"1.0.0","serverSeq":3,"snapshots":[]}}`)
		want := `{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":3,"snapshots":[]}}`
		a.wantMessages(want)
		b.wantMessages(want)
		if audiences, viewers := w.server.hosts.watching(); audiences != 1 || viewers != 2 {
			t.Errorf("%d audiences with %d viewers; want 1 with 2", audiences, viewers)
		}
		news := `{"jsonrpc":"2.0","method":"root/sessionAdded","params":{"channel":"ahp-root://"}}`
		h.send(news)
		a.wantMessages(want, news)

		// Only the last client's end closes the connection, after a delay.
		_ = a.ws.CloseNow()
		h.send(news)
		b.wantMessages(want, news, news)
		_ = b.ws.CloseNow()
		time.Sleep(time.Minute)
		h.wantClosed(1000)
		w.wantGone()

		c := w.dial(token)
		c.send(`{"jsonrpc":"2.0","id":1,"method":"reconnect","params":{"channel":"ahp-root://","clientId":"a","lastSeenServerSeq":3,"subscriptions":[]}}`)
		h = w.hostConn(2)
		h.send(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"1.0.0","serverSeq":9,"snapshots":[]}}`)
		c.wantMessages(`{"jsonrpc":"2.0","id":1,"result":{"type":"snapshot","snapshots":[]}}`)
		h.conn.Close(ahp.CloseHostOffline, "died")
		c.wantClosed(ahp.CloseHostOffline, "host offline: died")
	})
}

func TestDecodePiecesReversesEncodePiece(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type one struct {
			size                int
			first, last, binary bool
		}
		pieces := rapid.SliceOf(rapid.Custom(func(t *rapid.T) one {
			p := one{rapid.SampledFrom([]int{0, 1, 125, 126, 127, 65535, 65536}).Draw(t, "size"), rapid.Bool().Draw(t, "first"), rapid.Bool().Draw(t, "last"), false}
			p.binary = p.first && rapid.Bool().Draw(t, "binary")
			return p
		})).Draw(t, "pieces")
		var all []byte
		for i, p := range pieces {
			all = append(all, wire.EncodePiece([]byte(strings.Repeat(string(rune('a'+i%26)), p.size)), p.first, p.last, p.binary)...)
		}
		n, bytes := 0, 0
		wire.DecodePieces(all, func(payload, whole []byte, first, last, binary bool) {
			if got := (one{len(payload), first, last, binary}); got != pieces[n] || strings.Trim(string(payload), string(rune('a'+n%26))) != "" {
				t.Fatalf("piece %d is %+v; want %+v", n, got, pieces[n])
			}
			n, bytes = n+1, bytes+len(whole)
		})
		if n != len(pieces) || bytes != len(all) {
			t.Fatalf("%d pieces of %d bytes; want %d of %d", n, bytes, len(pieces), len(all))
		}
	})
}

// The host does not accept the connection for an audience: the relay closes the new
// viewer after 20 s without an answer. If the host accepts the connection, the relay
// keeps the viewer open until the host answers, even after more than 20 s.
func TestViewersOfASilentHostAreHeld(t *testing.T) {
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"a","protocolVersions":["1.0.0"]}}`
	viewer := func(w *world) *clientEnd {
		w.silent = true
		w.startAgent(routing.AgentEndConfig{})
		c := w.dial(w.token(func(c *auth.Client) { c.Access, c.Audience, c.Subject = auth.AccessRead, "link-1", "bob" }))
		synctest.Wait() // the relay has admitted the viewer before its first message
		c.send(hello)
		return c
	}
	inWorld(t, Config{}, func(w *world) {
		c := viewer(w)
		time.Sleep(greetingHold - time.Millisecond)
		c.wantOpen()
		time.Sleep(time.Millisecond)
		c.wantMessages()
		c.wantClosed(ahp.CloseHostOffline, "host offline: no answer for 20s")
	})
	inWorld(t, Config{}, func(w *world) {
		c := viewer(w)
		h := w.hostConn(1)
		time.Sleep(greetingHold / 2)
		if err := h.conn.Opened(); err != nil {
			w.Error(err)
		}
		time.Sleep(time.Minute)
		c.wantOpen()
		h.send(`{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"1.0.0","serverSeq":3,"snapshots":[]}}`)
		c.wantMessages(`{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"1.0.0","serverSeq":3,"snapshots":[]}}`)
	})
}
