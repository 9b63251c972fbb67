package hostagent

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/contentproxy"
	"ahprelay/routing"
)

// shows opens a stream of a browser for the canvas. looks is whether the host-agent permits its
// request, and stays is whether the stream may continue. A stream without a permitted request may
// always continue, because its next request is checked.
func (w *world) shows(open routing.Open) (looks, stays bool) {
	w.Helper()
	s := &canvasStream{open: open}
	_, err := w.agent.live.view(w.life, s)
	synctest.Wait()
	if !w.agent.live.mayStay(s) {
		w.Errorf("mayStay = false for a stream while the host is being asked about its canvas; want true")
	}
	s.shows.Store(true)
	return err == nil, w.agent.live.mayStay(s)
}

// wantShown fails unless the browser may view the canvas and its stream may continue, or neither if
// want is false.
func (w *world) wantShown(when string, open routing.Open, want bool) {
	w.Helper()
	if looks, stays := w.shows(open); looks != want || stays != want {
		w.Errorf("%s: the client may open the canvas: %v, and its stream may stay: %v; want both %v", when, looks, stays, want)
	}
}

// viewing returns what a relay sends when a browser of this client opens the canvas.
func viewing(client routing.Open, clientID string) routing.Open {
	return routing.Open{
		ID: "browser", Subject: client.Subject, Token: client.Token, Access: "read",
		Canvas: &routing.Canvas{Channel: board, Instance: "i", ClientID: clientID, Authority: client.Authority()},
	}
}

// views connects a client with the clientId "one", which subscribes to the canvas.
func (w *world) views(open routing.Open) *remote {
	c := w.openAs(w.relay, open)
	c.asks("initialize", `{"channel":"ahp-root://","clientId":"one","protocolVersions":["0.9.0"]}`)
	c.subscribes(board)
	return c
}

// TestCanvasIsWhoseViewItIs opens browsers for a canvas that a client views. Only a browser with
// the client's subject, clientId, authority and canvas instance may view it, because a relay
// accepts any clientId.
func TestCanvasIsWhoseViewItIs(t *testing.T) {
	inCanvasWorld(t, stateAt("http://127.0.0.1:1/"), func(w *world, _ *canvasHost) {
		ada := of("ada")
		c := w.views(ada)
		reader := ada
		reader.Access = "read"
		for _, away := range []bool{false, true} {
			when := "while she is connected"
			if away {
				c.conn.Close(1000, "bye")
				synctest.Wait()
				when = "while she is away"
			}
			w.wantShown("her browser "+when, viewing(ada, "one"), true)
			w.wantShown("another subject's that names her clientId "+when, viewing(of("bob"), "one"), false)
			w.wantShown("that of another client of hers "+when, viewing(ada, "two"), false)
			w.wantShown("that of a lesser token of hers "+when, viewing(reader, "one"), false)
			other := viewing(ada, "one")
			other.Canvas.Instance = "j"
			w.wantShown("another instance "+when, other, false)
		}
	})
}

// TestClientGoesWhileCanvasIsAsked ends a client's connection while a browser waits for the host's
// state of a canvas. The browser must get its answer at once, from the canvases that the client had
// at its end.
func TestClientGoesWhileCanvasIsAsked(t *testing.T) {
	inCanvasWorld(t, stateAt("http://127.0.0.1:1/"), func(w *world, _ *canvasHost) {
		ada := of("ada")
		c := w.views(ada)
		time.Sleep(contentproxy.Fresh + time.Second) // after this time, the host-agent asks the host again
		w.host.set(func() { w.host.answers = nil })
		type looked struct {
			err  error
			took time.Duration
		}
		shown := make(chan looked, 1)
		begun := time.Now()
		go func() {
			_, err := w.agent.live.view(w.life, &canvasStream{open: viewing(ada, "one")})
			shown <- looked{err, time.Since(begun)}
		}()
		synctest.Wait() // the browser waits for the host
		c.conn.Close(1000, "bye")
		if got := <-shown; got.err != nil || got.took > 0 {
			t.Errorf("the browser got the answer %v after %v; want success at once", got.err, got.took)
		}
	})
}

// TestKickedClientLosesItsCanvas kicks a client that views a canvas, with and without a time of
// refusal. Its browser must lose the canvas at once. After the time, or with a token that is not
// refused, the browser may view it again.
func TestKickedClientLosesItsCanvas(t *testing.T) {
	for _, bar := range []time.Duration{0, time.Minute} {
		inCanvasWorld(t, stateAt("http://127.0.0.1:1/"), func(w *world, _ *canvasHost) {
			ada := of("ada")
			w.views(ada)
			browser := viewing(ada, "one")
			w.wantShown("before", browser, true)
			unnamed := browser
			unnamed.Subject, unnamed.Token = "ada", "another" // this token is not refused
			for _, c := range w.agent.clients.every() {
				c.kicked.Store(true) // kick sets this before it ends the connection
			}
			w.wantShown("while it is sent away", unnamed, false)
			for _, c := range w.agent.clients.every() {
				c.kicked.Store(false)
			}
			if ended, err := w.agent.kick(Kick{Conn: ada.ID, For: bar}); ended != 1 || err != nil {
				t.Fatalf("kick ended %d connections, %v; want 1", ended, err)
			}
			synctest.Wait()
			w.wantShown("when it was sent away", unnamed, false)
			if bar > 0 {
				other := ada
				other.Token = "another" // the person's other token is not refused
				w.views(other)
				w.wantShown("with another token", viewing(other, "one"), true)
				w.wantShown("with the one that is barred", browser, false)
				time.Sleep(bar)
				w.wantShown("when the bar is over", browser, true)
			}
		})
	}
}

// TestPrivateSessionHidesCanvasesOfAbsentClients makes a session private whose canvas two people look at, while
// their clients are away. The browser of the other person must lose the canvas at once, and the owner's
// browser must keep it.
func TestPrivateSessionHidesCanvasesOfAbsentClients(t *testing.T) {
	inCanvasWorld(t, stateAt("http://127.0.0.1:1/"), func(w *world, _ *canvasHost) {
		owner, bob := of("ada"), of("bob")
		owner.Access = "admin"
		views := func(open routing.Open, clientID string) *remote {
			c := w.openAs(w.relay, open)
			c.asks("initialize", `{"channel":"ahp-root://","clientId":"`+clientID+`","protocolVersions":["0.9.0"]}`)
			c.subscribes(board)
			return c
		}
		for _, one := range []routing.Open{owner, bob} {
			views(one, one.Subject).conn.Close(1000, "bye")
			synctest.Wait()
			w.wantShown("before, to the absent "+one.Subject, viewing(one, one.Subject), true)
		}
		ada := views(owner, "page")
		ada.subscribes(sharing)
		if got := ada.asks("relay/private", `{"channel":"`+sharing+`","private":true}`); !strings.Contains(got, sharing) {
			t.Fatalf("ada, making her session private, gets %s; want it in the list", got)
		}
		w.wantShown("in private, to the absent bob", viewing(bob, "bob"), false)
		w.wantShown("in private, to the absent owner", viewing(owner, "ada"), true)
	})
}

// TestCanvasIsBoundToItsClient lets a browser's token expire. The canvas must stay visible while
// the client is connected or may return. If the relay ended the connection because the client's
// token ended, the canvas must be hidden until the client returns.
func TestCanvasIsBoundToItsClient(t *testing.T) {
	for _, end := range []struct {
		code  ahp.CloseCode
		shown bool // whether the canvas is visible after this close
	}{{1001, true}, {ahp.CloseTokenEnded, false}} {
		inCanvasWorld(t, stateAt("http://127.0.0.1:1/"), func(w *world, _ *canvasHost) {
			ada := of("ada")
			c := w.views(ada)
			browser := viewing(ada, "one")
			expires := time.Now().Add(time.Minute)
			browser.Expires = &expires
			w.wantShown("before the token expires", browser, true)
			time.Sleep(time.Hour)
			w.wantShown("when the token has expired and the client is connected", browser, true)
			c.conn.Close(end.code, "")
			synctest.Wait()
			w.wantShown("when the client has gone", browser, end.shown)
			time.Sleep(awayTime - time.Second)
			w.wantShown("when the client has gone for almost the time that it may be away", browser, end.shown)
			time.Sleep(2 * time.Second)
			w.wantShown("when the client has gone for longer", browser, false)
			w.views(ada)
			w.wantShown("when the client is back", browser, true)
		})
	}
}

// TestPreviewOutlivesItsTokenOnlyWithAClient lets the token of a preview's browser expire. The
// preview must stay visible while a client with the subject and authority of the browser is
// connected or may return.
func TestPreviewOutlivesItsTokenOnlyWithAClient(t *testing.T) {
	for _, end := range []struct {
		code  ahp.CloseCode
		shown bool // whether the preview is visible after this close
	}{{1001, true}, {ahp.CloseTokenEnded, false}} {
		inCanvasWorld(t, stateAt("http://127.0.0.1:1/"), func(w *world, _ *canvasHost) {
			w.agent.cfg.PreviewPorts = []PortRange{{3000, 3000}}
			ada := of("ada")
			ada.Access = "write"
			c := w.views(ada)
			browser := viewing(ada, "")
			one, err := w.agent.live.previews.add(viewer{"ada", "one", ada.Authority()}, sharing, 3000, w.agent.policy(ada))
			if err != nil {
				t.Fatal(err)
			}
			expires := time.Now().Add(30 * time.Minute)
			browser.Expires, browser.Canvas.Preview, browser.Canvas.Instance = &expires, true, one.ID
			w.wantShown("before the token expires", browser, true)
			time.Sleep(40 * time.Minute)
			w.wantShown("when the token has expired and the client is connected", browser, true)
			c.conn.Close(end.code, "")
			synctest.Wait()
			w.wantShown("when the client has gone", browser, end.shown)
			time.Sleep(awayTime + time.Second)
			w.wantShown("when the client has gone for longer than it may be away", browser, false)
			later := time.Now().Add(time.Minute)
			fresh := browser
			fresh.Expires = &later
			w.wantShown("with a token that lasts, and no client", fresh, true)
			w.views(ada)
			w.wantShown("when the client is back", browser, true)
		})
	}
}

// TestCutCharacterInContent reads a page of a host that has cut a text in the middle of a character, as JavaScript can. The
// browser must get the page, with a replacement character there.
func TestCutCharacterInContent(t *testing.T) {
	content, status, err := readContent([]byte(`{"jsonrpc":"2.0","id":1,"result":{"contents":[{"mimeType":"text/html","text":"<p>cut: \ud83d</p>"}]}}`))
	if want := "<p>cut: \ufffd</p>"; err != nil || string(content.data) != want {
		t.Errorf("the browser gets HTTP %d, %v, %q; want %q", status, err, content.data, want)
	}
}

// TestHostsErrorInAnyNotation reads a host's refusal to give a canvas's content, with the code as an integer and as floating
// point. The browser must get the status for this code, and the host's text.
func TestHostsErrorInAnyNotation(t *testing.T) {
	for _, code := range []string{"-32008", "-32008.0"} {
		_, status, err := readContent([]byte(`{"jsonrpc":"2.0","id":1,"error":{"code":` + code + `,"message":"no such file"}}`))
		if status != http.StatusNotFound || err == nil || err.Error() != "no such file" {
			t.Errorf("with the code %s, the browser gets HTTP %d, %v; want 404 and the host's text", code, status, err)
		}
	}
}
