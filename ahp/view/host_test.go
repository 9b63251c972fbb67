package view_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"ahprelay/ahp/view"
	_ "ahprelay/test/fixedseed"
)

func wantOwners(t *testing.T, h *view.Host, uri string, want ...string) {
	t.Helper()
	got := h.Owners(uri)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s belongs to %q; want %q", uri, got, want)
	}
}

// TestMovedChatLeavesItsSession moves a chat to another session. The chat must then belong to the
// second session only, also if a late message on another connection still has it in the first
// session.
func TestMovedChatLeavesItsSession(t *testing.T) {
	h := view.NewHost(nil)
	w, late := newWire(t, h), newWire(t, h)
	w.says(3, "mock:/s", `{"type":"session/chatAdded","summary":{"resource":"x:/1"}}`)
	wantOwners(t, h, "x:/1", "mock:/s")
	before := h.Changes()
	w.says(5, "mock:/s", `{"type":"session/chatRemoved","chat":"x:/1"}`)
	w.says(6, "mock:/t", `{"type":"session/chatAdded","summary":{"resource":"x:/1"}}`)
	wantOwners(t, h, "x:/1", "mock:/t")
	if h.Changes() == before {
		t.Error("Changes is the same after a chat has moved to a different session; want a new number")
	}
	// These messages are older, so they must change nothing.
	late.says(3, "mock:/s", `{"type":"session/chatAdded","summary":{"resource":"x:/1"}}`)
	late.host(`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/s","chats":[{"resource":"x:/1"}]}}}`)
	wantOwners(t, h, "x:/1", "mock:/t")
	late.asks(1, "subscribe", `{"channel":"mock:/s"}`, `{"snapshot":{"resource":"mock:/s","fromSeq":9,"state":{"chats":[{"resource":"x:/1"}]}}}`)
	wantOwners(t, h, "x:/1", "mock:/s", "mock:/t")
	late.asks(1, "subscribe", `{"channel":"mock:/t"}`, `{"snapshot":{"resource":"mock:/t","fromSeq":9,"state":{"chats":[]}}}`)
	wantOwners(t, h, "x:/1", "mock:/s")
}

func TestTerminalsBelongToTheirSessions(t *testing.T) {
	h := view.NewHost(nil)
	w := newWire(t, h)
	w.says(1, "ahp-chat:/c", `{"type":"chat/toolCallContentChanged","content":[{"type":"terminal","resource":"term:/1"}]}`)
	wantOwners(t, h, "term:/1")
	if got := h.Hinted("term:/1"); !slices.Equal(got, []string{"ahp-chat:/c"}) {
		t.Errorf("Hinted returns %q for a terminal that a chat has named; want the chat", got)
	}
	w.says(2, "term:/1", `{"type":"terminal/claimed","claim":{"kind":"session","session":"mock:/s"}}`)
	wantOwners(t, h, "term:/1", "mock:/s")
	w.says(3, "ahp-root://", `{"type":"root/terminalsChanged","terminals":[{"resource":"term:/1","claim":{"kind":"session","session":"mock:/t","chat":"x:/t"}}]}`)
	wantOwners(t, h, "term:/1", "mock:/t", "x:/t")
	w.says(2, "term:/1", `{"type":"terminal/claimed","claim":{"kind":"session","session":"mock:/s"}}`)
	wantOwners(t, h, "term:/1", "mock:/t", "x:/t")
	w.says(4, "term:/1", `{"type":"terminal/claimed","claim":{"kind":"client","clientId":"c"}}`)
	wantOwners(t, h, "term:/1")
}

// TestClientsTakeTerminalsOnly has clients claim a session's terminal, and the host repeat that. The
// terminal must leave the session, because the host no longer counts it as the session's. It must not
// get an owner by a client's word, nor leave an owner by an old message.
func TestClientsTakeTerminalsOnly(t *testing.T) {
	const by = `,"origin":{"clientId":"c","clientSeq":1}`
	h := view.NewHost(nil)
	w := newWire(t, h)
	echo := func(seq int, claim, more string) {
		w.host(`{"method":"action","params":{"channel":"term:/1","action":{"type":"terminal/claimed","claim":%s},"serverSeq":%d%s}}`, claim, seq, more)
	}
	w.says(2, "ahp-root://", `{"type":"root/terminalsChanged","terminals":[{"resource":"term:/1","claim":{"kind":"session","session":"mock:/s","chat":"x:/s"}}]}`)
	wantOwners(t, h, "term:/1", "mock:/s", "x:/s")
	echo(1, `{"kind":"client","clientId":"c"}`, by)
	echo(3, `{"kind":"client","clientId":"c"}`, by+`,"rejectionReason":"no"`)
	echo(4, `"mock:/s"`, by)
	wantOwners(t, h, "term:/1", "mock:/s", "x:/s")
	echo(5, `{"kind":"session","session":"mock:/s","chat":"x:/t"}`, by)
	wantOwners(t, h, "term:/1", "mock:/s")
	before := h.Changes()
	echo(6, `{"kind":"client","clientId":"c"}`, by)
	wantOwners(t, h, "term:/1")
	if h.Changes() == before {
		t.Error("Changes is the same after a client has taken a terminal; want a new number")
	}
	echo(7, `{"kind":"session","session":"mock:/s"}`, by)
	wantOwners(t, h, "term:/1")
	w.says(8, "term:/1", `{"type":"terminal/claimed","claim":{"kind":"session","session":"mock:/s"}}`)
	wantOwners(t, h, "term:/1", "mock:/s")
}

func TestTemplatesNameTheirSessionsChannels(t *testing.T) {
	h := view.NewHost(nil)
	w := newWire(t, h)
	for i, template := range []string{"mock:/cs/s-{turn}", "other:/{any}", "more:/{a}/{b}", "star:/*{x}"} {
		w.says(i+1, "mock:/s", fmt.Sprintf(`{"type":"session/changesetsChanged","changesets":[{"uriTemplate":%q}]}`, template))
	}
	wantOwners(t, h, "mock:/cs/s-1", "mock:/s")
	wantOwners(t, h, "mock:/cs/t-1")
	for _, uri := range []string{"other:/1", "more:/1/2", "star:/1"} {
		wantOwners(t, h, uri)
	}
}

// TestNewHostProcessIsRecognized answers a client with a lower serverSeq than the host had. The
// view must take this as a new host process and forget the old facts, but not if the answer was
// only sent earlier.
func TestNewHostProcessIsRecognized(t *testing.T) {
	h := view.NewHost(nil)
	w := newWire(t, h)
	w.says(100, "mock:/s", `{"type":"session/chatAdded","summary":{"resource":"x:/1"}}`)
	w.client(`{"id":1,"method":"initialize","params":{"clientId":"c"}}`)
	newWire(t, h).says(105, "mock:/s", `{"type":"session/chatAdded","summary":{"resource":"x:/2"}}`)
	w.host(`{"id":1,"result":{"serverSeq":102,"snapshots":[]}}`) // the host sent this before 105
	wantOwners(t, h, "x:/1", "mock:/s")
	w = newWire(t, h)
	w.asks(1, "initialize", `{"clientId":"c"}`, `{"serverSeq":2,"snapshots":[]}`)
	wantOwners(t, h, "x:/1")
	w.says(3, "mock:/s", `{"type":"session/chatAdded","summary":{"resource":"x:/1"}}`)
	wantOwners(t, h, "x:/1", "mock:/s")
	h.Ended()
	wantOwners(t, h, "x:/1")
}

// TestClientsCannotAdvanceTheHost has a client claim a very high serverSeq. The view must not take
// this for a new host process: the known facts must stay, and later messages of the host must
// change them.
func TestClientsCannotAdvanceTheHost(t *testing.T) {
	const resume = `{"id":1,"method":"reconnect","params":{"clientId":"x","lastSeenServerSeq":9000000000000000,"subscriptions":[]}}`
	for name, answer := range map[string]string{
		"replay":  `{"id":1,"result":{"type":"replay","actions":[],"missing":[]}}`,
		"refused": `{"id":1,"error":{"code":-32008,"message":"no"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			h := view.NewHost(nil)
			good, bad := newWire(t, h), newWire(t, h)
			good.asks(1, "initialize", `{"clientId":"c"}`, `{"serverSeq":2,"snapshots":[]}`)
			good.says(3, "mock:/s", `{"type":"session/chatAdded","summary":{"resource":"x:/1"}}`)
			bad.client("%s", resume)
			bad.host("%s", answer)
			bad.asks(2, "listSessions", `{}`, `{"items":[{"resource":"mock:/s","chats":[{"resource":"x:/1"}]}]}`)
			newWire(t, h).asks(1, "initialize", `{"clientId":"d"}`, `{"serverSeq":3,"snapshots":[]}`)
			wantOwners(t, h, "x:/1", "mock:/s") // the same host process
			good.says(4, "mock:/s", `{"type":"session/chatRemoved","chat":"x:/1"}`)
			wantOwners(t, h, "x:/1")
		})
	}
}

// TestResponsesAreNewerThanTheirRequests has a new client request a list, after another client got
// a fact with serverSeq 5. The answer has no serverSeq, but the host has sent it later. So its
// facts must replace the older fact.
func TestResponsesAreNewerThanTheirRequests(t *testing.T) {
	h := view.NewHost(nil)
	w := newWire(t, h)
	w.says(5, "mock:/s", `{"type":"session/chatRemoved","chat":"x:/1"}`)
	late := newWire(t, h)
	late.asks(1, "reconnect", `{"clientId":"c","subscriptions":[]}`, `{"type":"replay","actions":[],"missing":[]}`)
	late.asks(2, "listSessions", `{}`, `{"items":[{"resource":"mock:/s","chats":[{"resource":"x:/1"}]}]}`)
	wantOwners(t, h, "x:/1", "mock:/s")
}

// TestEachFormOfACanvasIsRead has a host describe canvases in each form. Canvas must return the
// described instance, address and state.
func TestEachFormOfACanvasIsRead(t *testing.T) {
	h := view.NewHost(nil)
	w := newWire(t, h)
	want := func(channel string, want view.Canvas) {
		t.Helper()
		got, _ := h.Canvas(channel)
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b view.Canvas) bool {
			return a.Instance == b.Instance && a.Hosted == b.Hosted && a.URL == b.URL && a.ContentURI == b.ContentURI && a.Closed == b.Closed
		})); diff != "" {
			t.Errorf("the canvas %s differs (-want +got): %s", channel, diff)
		}
	}
	state := func(id, state string) {
		w.asks(1, "subscribe", `{"channel":"ahp-canvas:/`+id+`"}`, `{"snapshot":{"resource":"ahp-canvas:/`+id+`","fromSeq":1,"state":`+state+`}}`)
	}
	state("1", `{"instanceId":"i","provider":{"kind":"server"},"url":"u","contentUri":"v"}`)
	want("ahp-canvas:/1", view.Canvas{Instance: "i", Hosted: true, URL: "u", ContentURI: "v"})
	w.says(2, "ahp-canvas:/1", `{"type":"canvas/updated","url":"w"}`)
	want("ahp-canvas:/1", view.Canvas{Instance: "i", Hosted: true, URL: "w", ContentURI: "v"})
	w.says(1, "ahp-canvas:/1", `{"type":"canvas/updated","url":"old"}`)
	w.says(3, "ahp-canvas:/1", `{"type":"canvas/updated","contentUri":null}`)
	want("ahp-canvas:/1", view.Canvas{Instance: "i", Hosted: true, URL: "w"})
	w.says(4, "mock:/s", `{"type":"session/openCanvasesChanged","openCanvases":[{"channel":"ahp-canvas:/1"}]}`)
	want("ahp-canvas:/1", view.Canvas{Instance: "i", Hosted: true, URL: "w"})
	w.says(5, "mock:/s", `{"type":"session/openCanvasesChanged","openCanvases":[]}`)
	want("ahp-canvas:/1", view.Canvas{Instance: "i", Hosted: true, URL: "w", Closed: true})

	state("2", `{"instanceId":"i","provider":{"kind":"client"},"extensionId":"e","url":"u"}`)
	want("ahp-canvas:/2", view.Canvas{Instance: "i", URL: "u"})
	state("3", `{"instanceId":"i","extensionId":"e","canvasId":"c","url":"u"}`)
	want("ahp-canvas:/3", view.Canvas{Instance: "i", Hosted: true, URL: "u"})
	state("5", `{"instanceId":"i","provider":null,"extensionId":"e","url":"u"}`) // null for an absent member
	want("ahp-canvas:/5", view.Canvas{Instance: "i", Hosted: true, URL: "u"})
	w.says(6, "ahp-canvas:/3", `{"type":"canvas/stateChanged","canvas":{"instanceId":"j","extensionId":"e"}}`)
	want("ahp-canvas:/3", view.Canvas{Instance: "j", Hosted: true})
	w.says(7, "ahp-chat:/c", `{"type":"chat/canvasesChanged","canvases":[{"resource":"ahp-canvas:/3"}]}`)
	w.says(8, "ahp-chat:/c", `{"type":"chat/canvasesChanged"}`)
	want("ahp-canvas:/3", view.Canvas{Instance: "j", Hosted: true, Closed: true})
	w.asks(9, "resolveCanvasSource", `{"channel":"ahp-canvas:/4"}`, `{"source":{"url":"u"}}`)
	want("ahp-canvas:/4", view.Canvas{Instance: "4", Hosted: true, URL: "u"})
}

// TestOwnersAreBounded names more channels than the Host remembers. A forgotten channel must have
// no owners, although it was used until then.
func TestOwnersAreBounded(t *testing.T) {
	h := view.NewHost(nil)
	w := newWire(t, h)
	w.says(1, "mock:/s", `{"type":"session/chatAdded","summary":{"resource":"x:/moved"}}`)
	w.asks(1, "subscribe", `{"channel":"mock:/s"}`, `{"snapshot":{"resource":"mock:/s","fromSeq":2,"state":{"chats":[]}}}`)
	for i := range 20_000 {
		h.Owners("x:/moved") // this URI is in use
		w.says(i+3, fmt.Sprint("mock:/", i), fmt.Sprintf(`{"type":"session/openCanvasesChanged","openCanvases":[{"channel":"ahp-canvas:/%d"}]}`, i))
	}
	wantOwners(t, h, "x:/moved")
	wantOwners(t, h, "ahp-canvas:/0")
	wantOwners(t, h, "ahp-canvas:/19999", "mock:/19999")
}

// TestLastStatementCountsInAnyOrder gives each connection some of the host's messages, with
// different delays. In the end, Owners must agree with the host's last statement about each chat
// and session.
func TestLastStatementCountsInAnyOrder(tb *testing.T) {
	rapid.Check(tb, func(t *rapid.T) {
		type word struct {
			channel, action string
			apply           func(map[string]bool)
		}
		sessions, chats := []string{"mock:/s", "mock:/t"}, []string{"x:/1", "x:/2", "x:/3"}
		words := make([]word, rapid.IntRange(1, 12).Draw(t, "words"))
		for i := range words {
			s, c := rapid.SampledFrom(sessions).Draw(t, "session"), rapid.SampledFrom(chats).Draw(t, "chat")
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				words[i] = word{s, `{"type":"session/chatAdded","summary":{"resource":"` + c + `"}}`, func(m map[string]bool) { m[c+s] = true }}
			case 1:
				words[i] = word{s, `{"type":"session/chatRemoved","chat":"` + c + `"}`, func(m map[string]bool) { m[c+s] = false }}
			default:
				words[i] = word{s, "", func(m map[string]bool) {
					for _, other := range chats {
						m[other+s] = other == c
					}
				}}
			}
		}
		h, want := view.NewHost(nil), map[string]bool{}
		conns := []*teller{{wire: newWire(tb, h)}, {wire: newWire(tb, h)}, {wire: newWire(tb, h)}}
		for i, one := range words {
			one.apply(want)
			heard := rapid.IntRange(1, 7).Draw(t, "heard by")
			for j, c := range conns {
				if heard>>j&1 != 0 {
					c.queue = append(c.queue, func(w wire) {
						if one.action != "" {
							w.says(i+1, one.channel, one.action)
							return
						}
						c := chats[slices.IndexFunc(chats, func(c string) bool { m := map[string]bool{}; one.apply(m); return m[c+one.channel] })]
						w.asks(1, "subscribe", `{"channel":"`+one.channel+`"}`,
							fmt.Sprintf(`{"snapshot":{"resource":%q,"fromSeq":%d,"state":{"chats":[{"resource":%q}]}}}`, one.channel, i+1, c))
					})
				}
			}
		}
		for slices.ContainsFunc(conns, func(c *teller) bool { return len(c.queue) > 0 }) {
			rapid.SampledFrom(conns).Draw(t, "next").tell()
		}
		for _, s := range sessions {
			for _, c := range chats {
				if got := slices.Contains(h.Owners(c), s); got != want[c+s] {
					t.Fatalf("%s belongs to %s: %v; want %v", c, s, got, want[c+s])
				}
			}
		}
	})
}

// A teller is a connection, and the messages that it has still to deliver.
type teller struct {
	wire  wire
	queue []func(wire)
}

func (c *teller) tell() {
	if len(c.queue) > 0 {
		c.queue[0](c.wire)
		c.queue = c.queue[1:]
	}
}
