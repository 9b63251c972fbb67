package audience

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// start connects a first viewer, ada, and answers the audience's initialize as the host. It returns
// the audience's connection at the host and the viewer.
func start(w *world) (*hostEnd, *clientEnd) {
	w.Helper()
	first := w.begun("ada")
	h := w.hostConn(0)
	h.messages()
	h.say(result(0, greets))
	first.want(greeted(5))
	return h, first
}

// TestEqualViewersShareOneConnection connects viewers by a link. Viewers with equal versions and
// authority must share a single connection to the host, which must not learn their clientIds. A
// viewer that differs in version, authority or link must get another connection.
func TestEqualViewersShareOneConnection(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.begun("ada"), w.begun("bob")
		h := w.hostConn(0)
		got := h.messages()
		if len(got) != 1 || !strings.Contains(got[0], `"protocolVersions":["1.0.0"],"capabilities":{"canvas":{}}`) || strings.Contains(got[0], "ada") {
			t.Fatalf("the host got %q; want one initialize without a person's name", got)
		}
		h.say(result(0, greets))
		a.want(greeted(5))
		b.want(greeted(5))
		if !slices.Contains(a.events, routing.Ready) || h.open.Subject != "link" || h.open.Access != "read" {
			t.Errorf("the viewer's events are %v, and the host's connection was opened with %+v; want Ready, the subject link and the access read", a.events, h.open)
		}
		c := w.begun("cleo")
		c.want(greeted(5))

		w.enter("link", look).send(strings.Replace(hello("dan"), "1.0.0", "0.9.0", 1))
		w.enter("link", routing.Open{Access: "read", Channels: []string{"mock:/2"}}).send(hello("eve"))
		w.enter("other", look).send(hello("fred"))
		w.hostConn(3)
		if len(w.all()) != 4 {
			t.Errorf("the host has %d connections; want 4", len(w.all()))
		}
	})
}

// TestSnapshotThenActions subscribes viewers to a channel, some of them at the same time. Each must
// get a current snapshot, and then each later action once and in order.
func TestSnapshotThenActions(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		a.ask(1, "subscribe", `{"channel":"mock:/1","delivery":{"maxLatencyMs":9},"view":{"turns":3}}`)
		if got := h.messages(); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","id":1,"method":"subscribe","params":{"channel":"mock:/1","view":{"turns":3}}}` {
			t.Fatalf("the host got %q; want one subscribe without the viewer's delivery", got)
		}
		h.say(result(1, `{"snapshot":`+snapshot("mock:/1", 7)+`}`), action("mock:/1", 8), action("mock:/2", 9), action("mock:/1", 10))
		a.want(result(1, `{"snapshot":`+snapshot("mock:/1", 7)+`}`), action("mock:/1", 8), action("mock:/1", 10))

		// Three viewers subscribe within the time spacing: the audience asks the host at once for
		// the first, and once more for the other two.
		b, c, d := w.begun("bob", "mock:/1"), w.begun("cleo", "mock:/1"), w.begun("dan", "mock:/1")
		if got := h.messages(); len(got) != 1 {
			t.Fatalf("at once the host is asked %q; want once", got)
		}
		h.say(action("mock:/1", 11)) // the snapshot will contain this action
		h.say(action("mock:/1", 12)) // not in the snapshot, but sent before it
		h.say(result(2, `{"snapshot":`+snapshot("mock:/1", 11)+`}`), action("mock:/1", 13))
		b.want(greeted(11, snapshot("mock:/1", 11)), action("mock:/1", 12), action("mock:/1", 13))
		a.want(action("mock:/1", 11), action("mock:/1", 12), action("mock:/1", 13))
		c.want()
		spaced()
		if got := h.messages(); len(got) != 1 {
			t.Fatalf("the host got %q; want one further subscribe", got)
		}
		h.say(result(3, `{"snapshot":`+snapshot("mock:/1", 13)+`}`))
		c.want(greeted(13, snapshot("mock:/1", 13)))
		d.want(greeted(13, snapshot("mock:/1", 13)))
	})
}

// TestForgottenChannelIsSubscribedAgain lets viewers leave a channel and then use so many others that
// the audience forgets it, within the time spacing. A viewer that returns to the channel must get its
// messages, and the host must get no unsubscribe before the viewer leaves.
func TestForgottenChannelIsSubscribedAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		id := 0
		visits := func(channel string) {
			id++
			a.ask(id, "subscribe", fmt.Sprintf(`{"channel":%q}`, channel))
			synctest.Wait()
			h.say(result(id, `{"snapshot":`+snapshot(channel, id)+`}`))
			synctest.Wait()
		}
		leaves := func(channel string) {
			a.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":%q}}`, channel))
		}
		visits("mock:/1")
		leaves("mock:/1")
		for i := range maxChannels {
			visits(fmt.Sprintf("mock:/other/%d", i))
			leaves(fmt.Sprintf("mock:/other/%d", i))
		}
		a.messages()
		h.messages()
		id++
		a.ask(id, "subscribe", `{"channel":"mock:/1"}`)
		spaced()
		h.say(result(id, `{"snapshot":`+snapshot("mock:/1", 10000)+`}`), action("mock:/1", 10001))
		a.want(result(id, `{"snapshot":`+snapshot("mock:/1", 10000)+`}`), action("mock:/1", 10001))
		if got := h.messages(); len(got) != 1 {
			t.Errorf("the host got %q; want one subscribe", got)
		}
		leaves("mock:/1")
		if got := h.messages(); len(got) != 1 || !strings.Contains(got[0], `"unsubscribe"`) {
			t.Errorf("the host got %q; want an unsubscribe", got)
		}
	})
}

// TestReadsAreShared lets two viewers request the same resource, 50 ms apart. The second viewer
// must not get the answer to the first request, which could be older, but the answer to a new
// request.
func TestReadsAreShared(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		b := w.begun("bob")
		b.messages()
		const params = `{"channel":"mock:/1", "uri":"x"}`
		a.ask(1, "resourceRead", params)
		b.ask("1", "resourceRead", params)
		if got := h.messages(); len(got) != 1 || !strings.Contains(got[0], `"method":"resourceRead","params":{"channel":"mock:/1","uri":"x"}`) {
			t.Fatalf("the host got %q; want one resourceRead", got)
		}
		spaced()
		h.say(result(1, `{"data":"old"}`))
		a.want(result(1, `{"data":"old"}`))
		b.want()
		if got := h.messages(); len(got) != 1 {
			t.Fatalf("the host got %q; want one further resourceRead", got)
		}
		h.say(`{"jsonrpc":"2.0","id":2,"error":{"code":-32006,"message":"gone"}}`)
		b.want(`{"jsonrpc":"2.0","id":"1","error":{"code":-32006,"message":"gone"}}`)

		b.send(`{"jsonrpc":"2.0","id":9,"method":"resources/read","channel":"mcp://s/1","params":{"uri":"ui://x"}}`)
		h.messages()
		h.say(`{"jsonrpc":"2.0","id":3,"result":{"contents":[]},"channel":"mcp://s/1"}`)
		b.want(`{"jsonrpc":"2.0","id":9,"result":{"contents":[]},"channel":"mcp://s/1"}`)
	})
}

// TestViewersChangeNothing sends requests and actions that would change something. None may reach
// the host. The viewer must get an error or a rejected action. A request from the host must get an
// error too.
func TestViewersChangeNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		for _, method := range []string{"createSession", "resourceWrite", "createTerminal", "authenticate", "createResourceWatch", "unheard/of", "tools/call"} {
			a.ask(1, method, `{"channel":"mock:/1"}`)
			if got := a.messages(); len(got) != 1 || !strings.Contains(got[0], `"code":-32009`) {
				t.Errorf("the answer to %s is %q; want error -32009", method, got)
			}
		}
		a.send(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"mock:/1","clientSeq":3,"action":{"type":"chat/turnStarted"}}}`)
		a.want(`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/1","action":{"type":"chat/turnStarted"},"serverSeq":5,"origin":{"clientId":"ada","clientSeq":3},"rejectionReason":"this link is read-only"}}`)
		b := w.begun("bob")
		b.messages()
		a.send(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"mock:/1","clientSeq":4,"action":{"type":"chat/draftChanged","draft":{"text":"hel"}}}}`)
		a.want(`{"jsonrpc":"2.0","method":"action","params":{"channel":"mock:/1","action":{"type":"chat/draftChanged","draft":{"text":"hel"}},"serverSeq":5,"origin":{"clientId":"ada","clientSeq":4}}}`)
		b.want()
		a.send(`{"jsonrpc":"2.0","method":"channel/frame","params":{"channel":"mock:/1","data":"x"}}`)
		a.send(`{"jsonrpc":"2.0","id":1,"result":{}}`)
		if got := h.messages(); len(got) != 0 {
			t.Errorf("the host got %q; want nothing", got)
		}
		h.say(`{"jsonrpc":"2.0","id":1,"method":"resourceRead","params":{"uri":"file:///etc/passwd"}}`, `{"jsonrpc":"2.0","id":2,"method":"ping","params":{"channel":"ahp-root://"}}`)
		if got := h.messages(); len(got) != 2 || !strings.Contains(got[0], `"code":-32009`) || got[1] != `{"jsonrpc":"2.0","id":2,"result":null}` {
			t.Errorf("the answers to the host are %q; want error -32009, and the ping's result", got)
		}
		a.want()
	})
}

// TestNotificationsReachTheirViewers sends notifications from the host. Those on a channel must
// reach its viewers only, and broadcasts all viewers.
func TestNotificationsReachTheirViewers(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		b := w.begun("bob")
		b.messages()
		a.ask(1, "subscribe", `{"channel":"ahp-root://"}`)
		a.ask(2, "subscribe", `{"channel":"ahp-otlp://logs"}`)
		h.messages()
		h.say(result(1, `{"snapshot":`+snapshot("ahp-root://", 5)+`}`), result(2, `{}`))
		a.messages()
		added := `{"jsonrpc":"2.0","method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{}}}`
		logs := `{"jsonrpc":"2.0","method":"otlp/exportLogs","params":{"channel":"ahp-otlp://logs"}}`
		h.say(action("ahp-root://", 6), added, logs)
		a.want(action("ahp-root://", 6), added, logs)
		b.want(added)

		// When the last viewer of a channel unsubscribes, the audience must unsubscribe at the
		// host. Later notifications on the channel reach no viewer.
		a.send(`{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"ahp-otlp://logs"}}`)
		if got := h.messages(); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","method":"unsubscribe","params":{"channel":"ahp-otlp://logs"}}` {
			t.Errorf("the host got %q; want one unsubscribe", got)
		}
		h.say(logs)
		a.want()
		b.want()
	})
}

// TestReturningViewerGetsSnapshots sends reconnect. A viewer that initialized before must get
// snapshots in the form that it requests. An unknown viewer must get error -32008.
func TestReturningViewerGetsSnapshots(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		again := func(clientID, subscriptions string) *clientEnd {
			c := w.enter("link", look)
			c.ask(1, "reconnect", fmt.Sprintf(`{"channel":"ahp-root://","clientId":%q,"lastSeenServerSeq":3,"subscriptions":%s}`, clientID, subscriptions))
			return c
		}
		if got := again("nobody", `[]`).messages(); len(got) != 1 || !strings.Contains(got[0], `"code":-32008`) {
			t.Errorf("an unknown viewer gets %q; want error -32008", got)
		}
		a.v.Close(1000, "")
		h.client.Closed(ahp.CloseResync, "gone")
		synctest.Wait()
		b := again("ada", `["mock:/1","mock:/none"]`)
		h = w.hostConn(1)
		h.say(result(0, greets))
		h.messages()
		h.say(result(1, `{"snapshot":`+snapshot("mock:/1", 9)+`}`), `{"jsonrpc":"2.0","id":2,"error":{"code":-32008,"message":"no"}}`, action("mock:/1", 10))
		b.want(result(1, `{"type":"snapshot","snapshots":[`+snapshot("mock:/1", 9)+`]}`), action("mock:/1", 10))
		spaced()
		c := again("ada", `[{"channel":"mock:/1","lastSeenServerSeq":3},{"channel":"mock:/none","lastSeenServerSeq":3}]`)
		h.messages()
		h.say(result(3, `{"snapshot":`+snapshot("mock:/1", 11)+`}`), `{"jsonrpc":"2.0","id":4,"error":{"code":-32008,"message":"no"}}`)
		c.want(result(1, `{"channels":[{"kind":"snapshot","channel":"mock:/1","snapshot":`+snapshot("mock:/1", 11)+`},{"kind":"missing","channel":"mock:/none"}]}`))
	})
}

// TestViewersLearnTheHostsRefusal refuses the audience's initialize as the host. All waiting
// viewers must get the error, the connection must close, and a viewer may initialize again.
func TestViewersLearnTheHostsRefusal(t *testing.T) {
	inWorld(t, func(w *world) {
		a, b := w.begun("ada"), w.begun("bob")
		h := w.hostConn(0)
		h.say(`{"jsonrpc":"2.0","id":0,"error":{"code":-32005,"message":"no","data":{"supportedVersions":["9"]}}}`)
		want := `{"jsonrpc":"2.0","id":"hello","error":{"code":-32005,"message":"no","data":{"supportedVersions":["9"]}}}`
		a.want(want)
		b.want(want)
		if !h.isClosed() {
			t.Error("the connection is open after the host's refusal; want it closed")
		}
		a.send(strings.Replace(hello("ada"), "1.0.0", "9", 1))
		h = w.hostConn(1)
		h.say(result(0, greets))
		a.want(greeted(5))
	})
}

// TestHostsEndClosesEachViewer lets all viewers leave: the connection to the host must close after
// the time linger, unless a viewer comes before. Then it ends a connection as the host: its viewer
// must be closed with the same code.
func TestHostsEndClosesEachViewer(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		b := w.begun("bob")
		a.v.Close(1000, "")
		b.v.Close(1000, "")
		time.Sleep(linger / 2)
		c := w.begun("cleo")
		c.want(greeted(5))
		c.v.Close(1000, "")
		time.Sleep(linger - time.Millisecond)
		if h.isClosed() {
			t.Error("the host connection is closed before the linger time; want it open")
		}
		time.Sleep(time.Millisecond)
		if !h.isClosed() {
			t.Error("the connection is open without viewers; want it closed")
		}
		d := w.begun("dan")
		h = w.hostConn(1)
		h.say(result(0, greets))
		d.want(greeted(5))
		h.client.Closed(ahp.CloseHostOffline, "died")
		if !slices.Equal(d.closes(), []ahp.CloseCode{ahp.CloseHostOffline}) {
			t.Errorf("the viewer was closed with %v; want CloseHostOffline", d.closes())
		}
	})
}

// TestViewerBeyondABoundDelaysNoViewer sends too many requests, uses too many versions, and makes
// too many bytes wait for a snapshot. The viewer in question must get an error or be closed, and
// others must continue.
func TestViewerBeyondABoundDelaysNoViewer(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		for n := range maxAsked + 1 {
			a.ask(n, "resourceRead", fmt.Sprintf(`{"uri":"x:/%d"}`, n))
		}
		if got := a.messages(); len(got) != 1 || !strings.Contains(got[0], `"code":4290`) {
			t.Errorf("the answer to a request above the bound is %q; want error 4290", got)
		}
		for n := range maxKinds {
			w.enter("link", look).send(strings.Replace(hello("x"), "1.0.0", fmt.Sprint(n), 1))
		}
		synctest.Wait()
		if n := len(w.all()); n != maxKinds {
			t.Errorf("the host has %d connections; want %d", n, maxKinds)
		}
		b := w.begun("bob")
		b.want(greeted(5))
		b.ask(1, "subscribe", `{"channel":"mock:/1"}`)
		h.messages()
		long := strings.Replace(action("mock:/1", 9), "delta", strings.Repeat("x", 1<<20), 1)
		for range maxHeldBytes >> 20 {
			h.say(long)
		}
		if !slices.Equal(b.closes(), []ahp.CloseCode{ahp.CloseResync}) {
			t.Errorf("a viewer with %d bytes to keep was closed with %v; want CloseResync", maxHeldBytes, b.closes())
		}
		if len(a.closes()) != 0 {
			t.Error("the other viewers were closed too; want them open")
		}
	})
}

// TestPiecesAreReassembled sends an answer from the host in pieces. The viewer must get the whole
// answer, and the host the credit for the pieces.
func TestPiecesAreReassembled(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		a.ask(1, "listSessions", `{"channel":"ahp-root://"}`)
		h.messages()
		text := result(1, `{"items":["`+strings.Repeat("x", 1000)+`"]}`)
		before := h.paid()
		for at := 0; at < len(text); at += 100 {
			end := min(at+100, len(text))
			h.client.Deliver([]routing.Frame{{Data: encode([]byte(text[at:end]), at == 0, end == len(text), false), Credit: 7}})
		}
		a.want(text)
		if h.paid() == before || !json.Valid([]byte(text)) {
			t.Error("no credit was returned to the host; want it")
		}
	})
}

// TestEndedAudienceKeepsNoBytes ends an audience without viewers while a message of the host is
// incomplete. The bytes of that message must no longer count as kept: the relay's memory budget
// would count them forever.
func TestEndedAudienceKeepsNoBytes(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		h.client.Deliver([]routing.Frame{{Data: encode(make([]byte, 1000), true, false, false), Credit: 1000}})
		a.v.Close(1000, "")
		time.Sleep(linger)
		if !h.isClosed() {
			t.Error("the connection is open without viewers; want it closed")
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.kept != 0 {
			t.Errorf("an ended audience keeps %d bytes; want none", w.kept)
		}
	})
}

// TestCrowdGetsNoActionOfItsSnapshot lets a host send an action after a snapshot that contains it.
// A viewer in a crowd must not get that action, because it would apply it twice.
func TestCrowdGetsNoActionOfItsSnapshot(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		a.ask(1, "subscribe", `{"channel":"mock:/1"}`)
		h.messages()
		answer := result(1, `{"snapshot":`+snapshot("mock:/1", 8)+`}`)
		h.say(answer)
		a.want(answer)
		h.say(action("mock:/1", 7))
		h.say(action("mock:/1", 8))
		h.say(action("mock:/1", 9))
		a.want(action("mock:/1", 9))
	})
}

// TestUnansweredRequestsAreBounded sends long requests, while the host does not answer. The audience
// keeps a request until its answer, also if the viewer leaves, and the relay's memory budget does not
// count it. So beyond the bound, viewers must get an error. After the host's answers, the next request
// must reach the host.
func TestUnansweredRequestsAreBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		long := strings.Repeat("x", 1<<20)
		asks := func(c *clientEnd, id any, uri string) { c.ask(id, "resourceRead", fmt.Sprintf(`{"uri":"x:/%s"}`, uri)) }
		sent := 0
		for n := range maxAskedBytes >> 20 {
			c := w.begun(fmt.Sprint("viewer", n))
			c.messages()
			asks(c, 1, fmt.Sprint(n, long))
			asks(c, long, fmt.Sprint("short", n))
			c.v.Close(1000, "")
			sent += len(h.messages())
		}
		asks(a, 1, "y"+long)
		a.ask(2, "subscribe", fmt.Sprintf(`{"channel":"mock:/%s"}`, long))
		if got := a.messages(); len(got) != 2 || slices.ContainsFunc(got, func(m string) bool { return !strings.Contains(m, `"code":4290`) }) {
			t.Errorf("the viewer got %d messages, %.200q; want error 4290 twice", len(got), got)
		}
		if got := h.messages(); len(got) != 0 {
			t.Errorf("the host got %d messages above the bound; want none", len(got))
		}
		for n := range sent {
			h.say(result(n+1, `{"data":""}`))
		}
		spaced()
		asks(a, 3, "y"+long)
		if got := h.messages(); len(got) != 1 {
			t.Errorf("after its answers, the host got %d messages; want the request", len(got))
		}
	})
}

// TestHostThatTakesNoAnswersIsLeft sends requests from a host that takes none of the answers. The
// audience must not keep more and more answers: beyond the bound, it must end.
func TestHostThatTakesNoAnswersIsLeft(t *testing.T) {
	inWorld(t, func(w *world) {
		h, a := start(w)
		blocked := make(chan struct{})
		defer close(blocked)
		h.mu.Lock()
		h.answer = func(*hostEnd, string, string, string, json.RawMessage) { <-blocked }
		h.mu.Unlock()
		a.ask(1, "resourceRead", `{"uri":"x:/1"}`)
		synctest.Wait()
		ping := fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":"ping","params":{"channel":"ahp-root://"}}`, strings.Repeat("x", 1<<20))
		for range maxUnsent>>20 - 1 {
			h.say(ping)
		}
		if len(a.closes()) != 0 {
			t.Errorf("the viewer was closed with %v below the bound; want it open", a.closes())
		}
		h.say(ping, ping)
		if !slices.Equal(a.closes(), []ahp.CloseCode{ahp.CloseResync}) || !h.isClosed() {
			t.Errorf("the viewer was closed with %v, and the connection to the host is closed: %t; want CloseResync, and it closed", a.closes(), h.isClosed())
		}
	})
}

// TestViewerOfAnEndedLinkIsClosed ends the link to the host-agent after a viewer has connected, and
// before it sends initialize. The viewer must be closed so that it connects again. It must get no
// error: for some clients, an error response to initialize is final.
func TestViewerOfAnEndedLinkIsClosed(t *testing.T) {
	for cause, code := range map[error]ahp.CloseCode{errors.New("link ended"): ahp.CloseResync, routing.ErrTooManyConns: ahp.CloseOverloaded} {
		inWorld(t, func(w *world) {
			w.broken = cause
			a := w.begun("ada")
			a.want()
			if !slices.Equal(a.closes(), []ahp.CloseCode{code}) {
				t.Errorf("the viewer was closed with %v; want %d", a.closes(), code)
			}
		})
	}
}

// TestUnreadMessagesAreBounded delivers more messages than the audience may have unread: one after
// another while the audience cannot handle them, and together. References to bodies need no credit
// from the relay, so a malicious host-agent can do that with a few bytes. The audience must end, with
// its connection to the host. Below the bound, it must stay open.
func TestUnreadMessagesAreBounded(t *testing.T) {
	message := encode([]byte(action("mock:/"+strings.Repeat("x", 1<<20), 9)), true, true, false)
	most := maxUnread / len(message)
	for _, together := range []bool{false, true} {
		inWorld(t, func(w *world) {
			h, a := start(w)
			deliver := func(n int) {
				w.pool.mu.Lock() // the audience waits
				defer w.pool.mu.Unlock()
				frames := slices.Repeat([]routing.Frame{{Data: message, Messages: 1}}, n)
				for chunk := range slices.Chunk(frames, map[bool]int{false: 1, true: n}[together]) {
					h.client.Deliver(chunk)
				}
			}
			deliver(most)
			if len(a.closes()) != 0 {
				t.Errorf("the viewer was closed with %v below the bound; want it open", a.closes())
			}
			deliver(2*most + 2) // a part of them may be handled already
			if !slices.Equal(a.closes(), []ahp.CloseCode{ahp.CloseOverloaded}) || !h.isClosed() {
				t.Errorf("the viewer was closed with %v, and the connection to the host is closed: %t; want CloseOverloaded, and it closed", a.closes(), h.isClosed())
			}
		})
	}
}

// TestNumbersAreReadAsInActions has a host that writes the integers of a snapshot in another notation
// than digits. The snapshot must have the serverSeq that an action with the same number has:
// otherwise, a viewer gets actions that the snapshot contains. The id of an answer must be read in any
// notation, too: otherwise, no viewer gets the answer.
func TestNumbersAreReadAsInActions(t *testing.T) {
	for _, number := range []string{"7", "7.0", "70e-1", "0", "-1", "null", `"7"`, "7.5", "1e400"} {
		action, err := ahp.Peek([]byte(`{"method":"action","params":{"channel":"a:/1","action":{},"serverSeq":` + number + `}}`))
		if err != nil {
			t.Fatal(err)
		}
		response, err := ahp.Peek([]byte(`{"id":1,"result":{"snapshot":{"resource":"a:/1","state":{},"fromSeq":` + number + `}}}`))
		if err != nil {
			t.Fatal(err)
		}
		want, _ := action.Said.Seq()
		if got := readAnswer(response).seq; got != want {
			t.Errorf("the snapshot has fromSeq %d for %s; want %d", got, number, want)
		}
	}
	for _, id := range []string{"7", "7.0", "70e-1"} {
		if got, err := ahp.Integer([]byte(id)); got != 7 || err != nil {
			t.Errorf("the id %s is %d, %v; want 7", id, got, err)
		}
	}
	for _, id := range []string{`"7"`, "7.5", "null"} {
		if got, err := ahp.Integer([]byte(id)); err == nil {
			t.Errorf("the id %s is %d; want an error", id, got)
		}
	}
}
