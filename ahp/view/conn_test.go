package view_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/test/carriers"
)

func newWire(t testing.TB, h *view.Host) wire { return wire{t, h.Conn("ada")} }

// client passes a client's message through the view, and host a host's message.
func (w wire) client(format string, args ...any) {
	w.Helper()
	w.shows([]carriers.Message{{Text: fmt.Sprintf(format, args...)}})
}

func (w wire) host(format string, args ...any) *view.Reading {
	w.Helper()
	r, _ := w.shows([]carriers.Message{{FromHost: true, Text: fmt.Sprintf(format, args...)}})
	return r
}

// asks passes a client's request and the host's answer. It returns the reading of the answer.
func (w wire) asks(id int, method, params, result string) *view.Reading {
	w.Helper()
	w.client(`{"id":%d,"method":%q,"params":%s}`, id, method, params)
	return w.host(`{"id":%d,"result":%s}`, id, result)
}

// says passes an action of the host itself, with this serverSeq.
func (w wire) says(seq int, channel, action string) {
	w.Helper()
	w.host(`{"method":"action","params":{"channel":%q,"serverSeq":%d,"action":%s}}`, channel, seq, action)
}

func wantTexts(t *testing.T, what string, r *view.Reading, want ...string) {
	t.Helper()
	if got := texts(r); !cmp.Equal(got, want) {
		t.Errorf("%s has the facts %q; want %q", what, got, want)
	}
}

// TestResponsesHaveFacts answers each kind of request that has facts. The reading of the answer
// must have exactly the expected facts.
func TestResponsesHaveFacts(t *testing.T) {
	w := newWire(t, view.NewHost(nil))
	wantTexts(t, "createResourceWatch", w.asks(1, "createResourceWatch", `{"channel":"ahp-root://","uri":"file:///a"}`, `{"channel":"watch:/1"}`),
		"has watch file:///a watch:/1")
	wantTexts(t, "fetchTurns", w.asks(2, "fetchTurns", `{"channel":"ahp-chat:/c"}`, `{"turns":[{"responseParts":[`+tool("")+`]}]}`),
		"has hint ahp-chat:/c term:/1", "has content ahp-chat:/c out:/1")
	wantTexts(t, "openCanvas", w.asks(3, "openCanvas", `{"channel":"mock:/s","canvas":"ahp-canvas:/1"}`, `{"canvas":{"resource":"ahp-canvas:/2"}}`),
		"has canvas mock:/s ahp-canvas:/2")
	wantTexts(t, "resolveCanvasSource", w.asks(4, "resolveCanvasSource", `{"channel":"ahp-canvas:/k"}`, `{"availability":"ready","source":{"url":"http://localhost:1/"}}`),
		`canvas source ahp-canvas:/k {"url":"http://localhost:1/"}`)
	r := w.asks(5, "listSessions", `{"channel":"ahp-root://"}`, `{"items":[{"resource":"mock:/s","chats":[{"resource":"ahp-chat:/1"}]},{"resource":"mock:/t","workingDirectory":"file:///a"}]}`)
	wantTexts(t, "listSessions", r, "has chat mock:/s ahp-chat:/1", "has folder mock:/t file:///a")
	wantTexts(t, "moveChat", w.asks(7, "moveChat", `{"channel":"ahp-chat:/1","destination":{"kind":"session","session":"mock:/t"}}`, `{"session":"mock:/t"}`),
		"has not chat mock:/s ahp-chat:/1", "has chat mock:/t ahp-chat:/1")
	wantTexts(t, "another method", w.asks(6, "resourceRead", `{"channel":"ahp-root://","uri":"file:///a"}`, `{"snapshots":[{"resource":"mock:/s","state":{"defaultChat":"x:/1"}}]}`))
	if r := w.host(`{"id":99,"result":{"snapshots":[{"resource":"mock:/s","state":{"defaultChat":"x:/1"}}]}}`); r != nil {
		t.Errorf("a response without a request has the facts %q; want none", texts(r))
	}
}

func TestNotificationsOfTheRootGiveFacts(t *testing.T) {
	w := newWire(t, view.NewHost(nil))
	wantTexts(t, "sessionAdded", w.host(`{"method":"root/sessionAdded","params":{"channel":"ahp-root://","summary":{"resource":"mock:/s","defaultChat":"x:/2","chats":[{"resource":"x:/1"}]}}}`),
		"has chat mock:/s x:/1", "has chat mock:/s x:/2")
	wantTexts(t, "sessionSummaryChanged", w.host(`{"method":"root/sessionSummaryChanged","params":{"channel":"ahp-root://","session":"mock:/s","changes":{"chats":[{"resource":"x:/1"}]}}}`),
		"has chat mock:/s x:/1", "lists chat mock:/s x:/1")
	wantTexts(t, "sessionRemoved", w.host(`{"method":"root/sessionRemoved","params":{"channel":"ahp-root://","session":"mock:/s"}}`), "session gone mock:/s")
	if r := w.host(`{"method":"root/later","params":{"channel":"ahp-root://","summary":{"resource":"mock:/s"}}}`); r != nil {
		t.Errorf("an unknown notification has the facts %q; want none", texts(r))
	}
}

// TestResponsesMatchRequestsOfTheirSide has client and host use the same ids. An answer must belong
// to the other side's request. The view must report when too many of the client's requests are
// open, and forget the host's oldest requests.
func TestResponsesMatchRequestsOfTheirSide(t *testing.T) {
	w := newWire(t, view.NewHost(nil))
	w.client(`{"id":1,"method":"resourceRead","params":{"channel":"ahp-root://","uri":"file:///a"}}`)
	w.client(`{"id":"1","method":"ping","params":{"channel":"ahp-root://"}}`)
	w.host(`{"id":1,"method":"resourceList","params":{"uri":"file:///b"}}`)
	if waits, _ := w.Waits([]byte("1.0")); !waits {
		t.Error("Waits = false for the ID 1.0; want true, because it equals 1")
	}
	if call, ok := w.Answering([]byte("1")); !ok || call.Method != "resourceList" {
		t.Errorf("the client's answer belongs to %+v; want resourceList", call)
	}
	w.client(`{"id":1,"result":{}}`)
	if _, ok := w.Answering([]byte("1")); ok {
		t.Error("Answering accepts a second answer to a request; want false")
	}
	if r := w.host(`{"id":1e0,"error":{"code":-32008,"message":""}}`); r == nil || r.Accepted || r.Call.Method != "resourceRead" || r.Call.URI != "file:///a" {
		t.Errorf("the host's answer is %+v; want a refused resourceRead of file:///a", r)
	}
	if r := w.host(`{"id":"1","result":null}`); r == nil || !r.Accepted || r.Call.Method != "ping" {
		t.Errorf("the host's answer is %+v; want an accepted ping", r)
	}
	for i := range 2000 {
		w.client(`{"id":%d,"method":"ping"}`, i)
		w.host(`{"id":%d,"method":"resourceRead"}`, i)
	}
	if _, full := w.Waits([]byte("0")); !full {
		t.Error("Waits reports room after 2,000 open requests; want none")
	}
	_, oldest := w.Answering([]byte("0"))
	_, latest := w.Answering([]byte("1999"))
	if r := w.host(`{"id":1500,"result":null}`); r != nil || oldest || !latest {
		t.Error("after 2,000 open requests, the view must know the latest only")
	}
}

// TestGrantedSubscriptionsAreKnown fails unless Subscribed returns true exactly for channels that
// the host has granted and the client has not left.
func TestGrantedSubscriptionsAreKnown(t *testing.T) {
	w := newWire(t, view.NewHost(nil))
	want := func(when string, channels ...string) {
		t.Helper()
		for _, c := range []string{"a:/1", "a:/2", "a:/3", "a:/4"} {
			if got := w.Subscribed(c); got != slices.Contains(channels, c) {
				t.Errorf("%s: subscribed to %s: %v; want the opposite", when, c, got)
			}
		}
	}
	snapshot := func(c string) string { return fmt.Sprintf(`{"resource":%q,"state":{},"fromSeq":1}`, c) }
	w.asks(1, "initialize", `{"clientId":"c","initialSubscriptions":["a:/1","a:/2"]}`, `{"snapshots":[`+snapshot("a:/1")+`]}`)
	want("initialize", "a:/1")
	w.client(`{"id":2,"method":"subscribe","params":{"channel":"a:/2"}}`)
	want("asked for", "a:/1")
	w.host(`{"id":2,"error":{"code":-32009,"message":"no"}}`)
	want("refused", "a:/1")
	w.asks(3, "subscribe", `{"channel":"a:/3"}`, `{}`)
	want("stateless", "a:/1", "a:/3")
	w.client(`{"method":"unsubscribe","params":{"channel":"a:/1"}}`)
	want("left", "a:/3")
	w.client(`{"id":4,"method":"subscribe","params":{"channel":"a:/4"}}`)
	w.client(`{"method":"unsubscribe","params":{"channel":"a:/4"}}`)
	w.host(`{"id":4,"result":{"snapshot":%s}}`, snapshot("a:/4"))
	want("left before the answer", "a:/3")

	w = newWire(t, view.NewHost(nil))
	w.asks(1, "reconnect", `{"clientId":"c","subscriptions":["a:/1","a:/2","a:/3"]}`, `{"type":"replay","actions":[],"missing":["a:/2"]}`)
	want("reconnect", "a:/1", "a:/3")
	w = newWire(t, view.NewHost(nil))
	w.asks(1, "reconnect", `{"clientId":"c","subscriptions":[{"channel":"a:/1"},{"channel":"a:/2"}]}`, `{"channels":[{"kind":"replay","channel":"a:/1","actions":[]},{"kind":"missing","channel":"a:/2"}]}`)
	want("reconnect by channel", "a:/1")
	w.host(`{"method":"channel/reset","params":{"channel":"a:/1"}}`)
	want("reset")

	for _, c := range []struct{ method, params, result, channel string }{
		{"reconnect", `"subscriptions":["a:/1","a:/2"]`, `{"type":"snapshot","snapshots":[` + snapshot("a:/1") + `]}`, "a:/1"},
		{"reconnect", `"subscriptions":["a:/1","a:/2"],"windows":{"items":[{"channel":"a:/1"}]}`, `{"type":"snapshot","snapshots":[],"windows":{"items":[{"channel":"a:/1"}]}}`, "a:/1"},
		{"reconnect", `"subscriptions":[{"channel":"a:/1"},{"channel":"a:/2"}]`, `{"channels":[{"kind":"replay","channel":"a:/1","actions":[]}]}`, "a:/1"},
		{"reconnect", `"subscriptions":["a:/2"]`, `{"type":"replay","type":"snapshot","missing":[],"missing":["a:/2"]}`, ""},
		{"initialize", `"subscriptions":["a:/2"]`, `{"serverSeq":1,"snapshots":[` + snapshot("a:/1") + `]}`, "a:/1"},
	} {
		w = newWire(t, view.NewHost(nil))
		w.asks(1, c.method, `{"clientId":"c",`+c.params+`}`, c.result)
		want(c.method+" with "+c.params+" answered by "+c.result, c.channel)
	}
}

// TestNullSnapshotsAreNone resumes a client at a host that writes null for absent members. The
// reading must equal that of a replay without these members: the client continues, and its channels
// are unstated.
func TestNullSnapshotsAreNone(t *testing.T) {
	for _, result := range []string{
		`{"type":"replay","actions":[],"missing":[]}`,
		`{"type":"replay","actions":[],"missing":[],"snapshots":null,"channels":null,"snapshot":null}`,
		`{"type":"replay","actions":null,"missing":null,"snapshots":null}`,
	} {
		w := newWire(t, view.NewHost(nil))
		r := w.asks(1, "reconnect", `{"clientId":"c","subscriptions":["a:/1"]}`, result)
		if r.Anew || r.Lost || !slices.Equal(r.Granted, []string{"a:/1"}) || !slices.Equal(r.Unstated(), []string{"a:/1"}) {
			t.Errorf("%s: anew %v, lost %v, granted %q, unstated %q; want false, false, and a:/1 twice", result, r.Anew, r.Lost, r.Granted, r.Unstated())
		}
	}
}

// TestDeclarationsAreRemembered declares a client's capabilities. Declared must return them after
// the host's answer, and on later connections of the same subject and clientId.
func TestDeclarationsAreRemembered(t *testing.T) {
	h := view.NewHost(nil)
	want := func(w wire, when, caps string, earlier, known bool) {
		t.Helper()
		if c, e, k := w.Declared(); string(c) != caps || e != earlier || k != known {
			t.Errorf("%s: Declared = %s, earlier %v, known %v; want %s, %v, %v", when, c, e, k, caps, earlier, known)
		}
	}
	w := newWire(t, h)
	w.client(`{"id":1,"method":"initialize","params":{"clientId":"c","capabilities":{"canvas":{}}}}`)
	want(w, "before the host has answered", "", false, false)
	w.host(`{"id":1,"result":{}}`)
	want(w, "initialize", `{"canvas":{}}`, false, true)
	w = newWire(t, h)
	w.asks(1, "reconnect", `{"clientId":"c","subscriptions":[]}`, `{"type":"replay","actions":[]}`)
	want(w, "reconnect", `{"canvas":{}}`, true, true)
	w = wire{t, h.Conn("bob")}
	w.asks(1, "reconnect", `{"clientId":"c","subscriptions":[]}`, `{"type":"replay","actions":[]}`)
	want(w, "another subject", "", false, false)
	h.Ended()
	w = newWire(t, h)
	w.asks(1, "reconnect", `{"clientId":"c","subscriptions":[]}`, `{"type":"replay","actions":[]}`)
	want(w, "another process", "", false, false)
	w = newWire(t, h)
	w.asks(1, "initialize", `{"clientId":"c","capabilities":{"x":"`+strings.Repeat("x", 16<<10)+`"}}`, `{}`)
	want(w, "too many", "", false, false)
}

// TestFramesAreJoined passes messages in pieces, with pieces of another channel between. The view
// must read each joined message, and report messages that it cannot join.
func TestFramesAreJoined(t *testing.T) {
	w := newWire(t, view.NewHost(nil))
	frame := func(channel, data string, final bool) *view.Reading {
		return w.host(`{"method":"channel/frame","params":{"channel":%q,"data":%q,"final":%v}}`, channel, data, final)
	}
	action := func(channel, chat string) string {
		return fmt.Sprintf(`{"method":"action","params":{"channel":%q,"serverSeq":4,"action":{"type":"session/chatUpdated","chat":%q}}}`, channel, chat)
	}
	a, b := action("mock:/a", "x:/a"), action("mock:/b", "x:/b")
	wantTexts(t, "a piece", frame("mock:/a", a[:9], false))
	wantTexts(t, "a piece between", frame("mock:/b", b[:1], false))
	wantTexts(t, "the last piece", frame("mock:/a", a[9:], true), "has chat mock:/a x:/a")
	wantTexts(t, "the last piece of the other", frame("mock:/b", b[1:], true), "has chat mock:/b x:/b")

	// A reset ends a message before its last piece. The next message must not begin with its
	// pieces.
	frame("mock:/a", a[:9], false)
	w.host(`{"method":"channel/reset","params":{"channel":"mock:/a"}}`)
	wantTexts(t, "after a reset", frame("mock:/a", a, true), "has chat mock:/a x:/a")

	for _, bad := range []string{b, a[:20], a + a, `{"method":"channel/frame","params":{"channel":"mock:/a","data":"{}","final":true}}`} {
		if r := frame("mock:/a", bad, true); !r.Lost || texts(r) != nil {
			t.Errorf("the frame %s has the facts %q; want it lost, without facts", bad, texts(r))
		}
	}
	for i := range 64 {
		frame(fmt.Sprintf("mock:/open%d", i), "{", false)
	}
	if r := frame("mock:/a", a, true); !r.Lost || texts(r) != nil {
		t.Errorf("a message without room for its beginning has the facts %q; want none, and Lost", texts(r))
	}
}

// TestOversizedFramesAreLost passes a message in pieces that exceed the bound together. The view
// must report it as lost, and read the next message.
func TestOversizedFramesAreLost(t *testing.T) {
	w := newWire(t, view.NewHost(nil))
	half := strings.Repeat("x", 20<<20)
	for i := range 4 {
		r := w.host(`{"method":"channel/frame","params":{"channel":"mock:/a","data":%q,"final":%v}}`, half, i == 3)
		if lost := i >= 2; r.Lost != lost {
			t.Errorf("piece %d of a long frame: lost %v; want true from the third piece", i, r.Lost)
		}
	}
	r := w.host(`{"method":"channel/frame","params":{"channel":"mock:/a","data":%q,"final":true}}`,
		`{"method":"action","params":{"channel":"mock:/a","action":{"type":"x","chat":"x:/1"}}}`)
	wantTexts(t, "the next one", r, "has chat mock:/a x:/1")
}

// ordinary returns a host's action, 512 bytes long.
func ordinary() []byte {
	start := `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/delta","turnId":"a6c7a0d4","partId":"p","content":"`
	end := `"},"serverSeq":123456}}`
	return []byte(start + strings.Repeat("text ", 100)[:512-len(start)-len(end)] + end)
}

// TestOrdinaryActionsCostNothing fails if the view allocates memory for an action without facts.
func TestOrdinaryActionsCostNothing(t *testing.T) {
	message := ordinary()
	env, err := ahp.Peek(message)
	if err != nil {
		t.Fatal(err)
	}
	c := view.NewHost(nil).Conn("ada")
	if n := testing.AllocsPerRun(100, func() {
		if c.FromHost(message, &env) != nil {
			t.Fatal("FromHost returns facts for an ordinary action; want none")
		}
	}); n != 0 {
		t.Errorf("%v allocations; want none", n)
	}
	if c.Seq() != 123456 {
		t.Errorf("Seq = %d; want 123456", c.Seq())
	}
}

func BenchmarkOrdinary(b *testing.B) {
	message := ordinary()
	env, _ := ahp.Peek(message)
	c := view.NewHost(nil).Conn("ada")
	b.ReportAllocs()
	for b.Loop() {
		c.FromHost(message, &env)
	}
}

// TestClientIDOf lists params. ClientIDOf must return a clientId only if all hosts would read the
// same.
func TestClientIDOf(t *testing.T) {
	for _, test := range []struct {
		params, id string
		clear      bool
	}{
		{`{"clientId":"c"}`, "c", true},
		{`{"cli\u0065ntId":"\u0063"}`, "c", true},
		{`{}`, "", true},
		{`[]`, "", true},
		{``, "", true},
		{`{"clientId":""}`, "", false},
		{`{"clientId":null}`, "", false},
		{`{"clientId":["c"]}`, "", false},
		{`{"clientId":"c","clientId":"c"}`, "", false},
		{`{"clientId":"c","ClientId":"d"}`, "", false},
	} {
		if id, clear := view.ClientIDOf([]byte(test.params)); id != test.id || clear != test.clear {
			t.Errorf("%s: %q, %v; want %q, %v", test.params, id, clear, test.id, test.clear)
		}
	}
}

// TestAmbiguousClientIsNotRemembered declares capabilities with an ambiguous clientId. The
// capabilities must not count on later connections.
func TestAmbiguousClientIsNotRemembered(t *testing.T) {
	h := view.NewHost(nil)
	newWire(t, h).asks(1, "initialize", `{"clientId":"c","ClientId":"d","capabilities":{"x":{}}}`, `{"serverSeq":1}`)
	for _, id := range []string{"c", "d"} {
		w := newWire(t, h)
		w.asks(1, "reconnect", `{"clientId":"`+id+`","subscriptions":[]}`, `{"type":"replay","actions":[]}`)
		if _, _, known := w.Declared(); known {
			t.Errorf("the client with the ID %s is known; want it unknown", id)
		}
	}
}
