package mcpgate_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp"
	"ahprelay/ahp/view"
	"ahprelay/auth/gate"
	"ahprelay/auth/mcpgate"
)

// call sends a request that no MCP server supports, and returns its verdict: "-32601" if the
// channel is available, "-32008" if not, "pass" if it is unknown.
func (w *wire) call(channel string) string {
	return verdict(w.client(fmt.Sprintf(`{"id":1,"method":"initialize","channel":%q}`, channel)))
}

// TestServersAreBounded shows a client 2,000 MCP servers. The gate must keep 1,024, and report once
// that it does not keep all.
func TestServersAreBounded(t *testing.T) {
	for _, sessions := range []int{1, 64} {
		w := newWire(t, view.NewHost(nil), mcpgate.Config{})
		channel := func(i int) string { return fmt.Sprint("mcp://h/", i) }
		for s := range sessions {
			var list []string
			for i := s; i < 2000; i += sessions {
				list = append(list, mcpServer(fmt.Sprint(i), channel(i), "ready", ""))
			}
			w.subscribe(fmt.Sprint("ahp-session:/", s), "["+strings.Join(list, ",")+"]")
		}
		if got := w.took(); !strings.HasPrefix(got, "observation:state_not_kept") {
			t.Errorf("with %d sessions, the events are %q; want one state_not_kept", sessions, got)
		}
		known := 0
		for i := range 2000 {
			if w.call(channel(i)) == "-32601" {
				known++
			}
		}
		if known != 1024 {
			t.Errorf("%d sessions: %d servers are known; want 1024", sessions, known)
		}
		// After a session's servers are removed, new servers must be kept.
		w.subscribe("ahp-session:/0", "[]")
		w.subscribe("ahp-session:/new", "["+mcpServer("x", "mcp://new", "ready", "")+"]")
		if got := w.call("mcp://new"); got != "-32601" {
			t.Errorf("%d sessions: a call to a new server after others were removed: %s; want -32601", sessions, got)
		}
	}
}

// TestLatestGoneChannelsAreKept moves a server to 2,000 channels in turn. The gate must remember
// the last 256 as removed, and refuse calls on all but the server's current channel.
func TestLatestGoneChannelsAreKept(t *testing.T) {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{})
	const n = 2000
	name := func(i int) string { return fmt.Sprint("mcp://h/", i) }
	w.subscribe(session, "["+mcpServer("s", name(0), "ready", "")+","+mcpServer("other", "mcp://stays", "ready", "")+"]")
	for i := 1; i <= n; i++ {
		w.action(session, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"ready"},"channel":"`+name(i)+`"}`)
	}
	for i := range n + 1 {
		want := "-32008" // also if the gate has forgotten it
		if i == n {
			want = "-32601"
		}
		if got := w.call(name(i)); got != want {
			t.Fatalf("channel %d: %s; want %s", i, got, want)
		}
		gone := strings.Contains(w.client(`{"id":1,"method":"x","channel":"`+name(i)+`"}`), "not available any more")
		if known := n-256 <= i && i < n; gone != known {
			t.Fatalf("channel %d is known as removed: %v; want %v", i, gone, known)
		}
	}
	if got := w.call("mcp://stays"); got != "-32601" {
		t.Errorf("a call to a channel without room: %s; want -32601", got)
	}
	// A channel that is removed and named repeatedly must not displace others.
	for range 300 {
		for _, channel := range []string{name(n - 256), name(n)} {
			w.action(session, `{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"ready"},"channel":"`+channel+`"}`)
		}
	}
	if got := w.call(name(n - 255)); got != "-32008" {
		t.Errorf("a call to a removed channel: %s; want -32008", got)
	}
}

// TestLongNamesAreNotKept names a channel of 4 KiB and a longer channel. The gate must keep the
// channel of 4 KiB, and report that it does not keep the longer channel.
func TestLongNamesAreNotKept(t *testing.T) {
	for size, want := range map[int]string{4 << 10: "-32601", 4<<10 + 1: "pass"} {
		w := newWire(t, view.NewHost(nil), mcpgate.Config{})
		channel := "mcp://" + strings.Repeat("x", size-len("mcp://"))
		w.subscribe(session, "["+mcpServer("s", channel, "ready", "")+"]")
		if got := w.call(channel); got != want {
			t.Errorf("a channel of %d bytes: %s; want %s", size, got, want)
		}
		if lost := w.took() == "observation:state_not_kept"; lost != (want == "pass") {
			t.Errorf("a channel with %d bytes is reported as not kept: %v; want that only for a long name", size, lost)
		}
	}
}

// TestOpenRequestsAreBounded sends 1,001 requests without answers. The gate must use the answers to
// all but the last request, and report once that it does not use that answer.
func TestOpenRequestsAreBounded(t *testing.T) {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{})
	for i := range 1001 {
		w.client(fmt.Sprintf(`{"id":%d,"method":"subscribe","params":{"channel":"ahp-session:/%d"}}`, i, i))
	}
	if got := w.took(); got != "observation:state_not_kept" {
		t.Errorf("events %q; want one, for the last request", got)
	}
	for _, i := range []int{0, 999, 1000} {
		channel := fmt.Sprint("mcp://h/", i)
		w.host(fmt.Sprintf(`{"id":%d,"result":{"snapshot":{"resource":"ahp-session:/%d","state":{"customizations":[%s]}}}}`, i, i, mcpServer("s", channel, "ready", "")))
		want := "-32601"
		if i == 1000 {
			want = "-32008"
		}
		if got := w.call(channel); got != want {
			t.Errorf("request %d: %s; want %s", i, got, want)
		}
	}
}

// encode returns a state as JSON in the form that reports use.
func encode(s mcpgate.State) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(s)
	return bytes.TrimSpace(b.Bytes()), err
}

// TestStateIsBounded shows a client servers with long names. The state must still fit into a
// report's 24 KiB.
func TestStateIsBounded(t *testing.T) {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{})
	w.greet("c", `{"mcpApps":{},"x":"`+strings.Repeat("<", 4000)+`"}`)
	for _, size := range []int{20, 200, 4000} {
		var list []string
		for i := range 300 {
			channel := fmt.Sprintf("mcp://%0*d", size-len("mcp://"), i)
			if i%2 == 0 {
				channel = fmt.Sprintf("mcp://%s/%d", strings.Repeat("<&\n\x01", (size-12)/4), i)
			}
			list = append(list, mcpServer(fmt.Sprint(i), strings.NewReplacer("\n", `\n`, "\x01", `\u0001`).Replace(channel), "ready", adverts[12].json))
		}
		w.subscribe(session, strings.ReplaceAll("["+strings.Join(list, ",")+"]", `\\`, `\`))
		s := w.gate.State()
		data, err := encode(s)
		if err != nil || len(data) > 24<<10 || len(s.Channels)+s.Omitted < 300 {
			t.Errorf("with channel names of %d bytes, the encoded state has %d bytes, %v, %d channels and %d omitted; want at most 24 KiB, and 300 channels listed or omitted", size, len(data), err, len(s.Channels), s.Omitted)
		}
		if size == 20 && len(s.Channels) < 10 {
			t.Errorf("the state lists %d channels with short names; want at least 10", len(s.Channels))
		}
	}
}

// TestStateListsEachChannel fails unless the reported state lists each channel with its state and
// methods.
func TestStateListsEachChannel(t *testing.T) {
	w := newWire(t, view.NewHost(nil), mcpgate.Config{})
	w.greet("c", `{"mcpApps": {}}`)
	w.subscribe(session, "["+strings.Join([]string{
		mcpServer("a", "mcp://a", "ready", adverts[4].json), mcpServer("b", "mcp://b", "authRequired", adverts[4].json),
		mcpServer("c", "mcp://c", "ready", adverts[14].json), mcpServer("d", "mcp://d", "ready", ""), mcpServer("e", "mcp://e", "ready", ""),
	}, ",")+"]")
	w.action(session, `{"type":"session/customizationRemoved","id":"d"}`)
	w.action(session, `{"type":"session/customizationToggled","id":"e","enabled":false}`)
	data, err := encode(w.gate.State())
	want := `{"initialized":true,"mode":"soft","clientCapabilities":{"mcpApps":{}},"clientCapabilitiesFrom":"initialize","channels":[` +
		`{"channel":"mcp://a","state":"ready","methods":["tools/list","tools/call"],"listChanged":["tools"]},` +
		`{"channel":"mcp://b","state":"authRequired"},` +
		`{"channel":"mcp://c","state":"ready","methods":["logging/setLevel","notifications/message"],"open":true},` +
		`{"channel":"mcp://d","state":"gone"},{"channel":"mcp://e","state":"disabled"}]}`
	if err != nil || string(data) != want {
		t.Errorf("state %s, %v; want %s", data, err, want)
	}
}

// FuzzGate passes arbitrary messages. The gate must keep its bounds and change no message. In soft
// mode, it may refuse only messages on mcp:// channels.
func FuzzGate(f *testing.F) {
	f.Add([]byte(`{"id":1,"method":"subscribe","params":{"channel":"a"}}`), []byte(`{"id":1,"result":{"snapshot":{"resource":"a","state":{"customizations":[`+mcpServer("s", uri, "ready", adverts[12].json)+`]}}}}`),
		[]byte(`{"id":2,"channel":"`+uri+`","method":"tools/call"}`), true)
	f.Add([]byte(`{"id":1,"method":"initialize","params":{"capabilities":{"canvas":{}}}}`), []byte(`{"id":1,"result":{}}`), []byte(`{"id":1,"method":"roots/list"}`), true)
	f.Add([]byte(`{"id":1,"method":"reconnect","params":{}}`), []byte(`{"id":1,"result":{"actions":[{"channel":"a","action":{"type":"session/mcpServerStateChanged","id":"s","state":{"kind":"ready"},"channel":"mcp://x"}}]}}`),
		[]byte(`{"method":"notifications/tools/list_changed","channel":"mcp://x"}`), false)
	f.Add([]byte(`{"method":"action","params":{"channel":"a","action":{"type":"session/customizationUpdated","customization":{"id":"x","children":[{"type":"mcpServer","id":"y","mcpApp":{"capabilities":{"\u0061":{}}}}]}}}}`),
		[]byte(`{"method":"channel/frame","params":{"actions":[{"channel":"a","action":{"type":"session/customizationRemoved","id":"y"}}]}}`), []byte(`{}`), false)
	f.Fuzz(func(t *testing.T, first, second, third []byte, strict bool) {
		events := 0
		w := newWire(t, view.NewHost(nil), mcpgate.Config{})
		g := mcpgate.New(w.chain.View, mcpgate.Config{Strict: strict, Event: func(e mcpgate.Event) {
			if events++; len(e.Method) > 64 {
				t.Fatalf("an event names a method with %d bytes; want at most 64", len(e.Method))
			}
		}})
		w.chain.Gates = []gate.Gate{g}
		for _, message := range [][]byte{first, second, third, first, third} {
			env, err := ahp.Peek(message)
			if err != nil {
				continue
			}
			before := bytes.Clone(message)
			for _, judge := range []func() (string, []byte){
				func() (string, []byte) { d := w.chain.FromClient(message, &env); return result(d), d.Message },
				func() (string, []byte) { d, _ := w.chain.FromHost(message, &env); return result(d), d.Message },
			} {
				got, answer := judge()
				if got != "pass" && !bytes.HasPrefix(bytes.ToLower(env.Channel), []byte("mcp:")) && !strict {
					t.Fatalf("the gate's verdict on %s, outside of MCP, is %s; want pass", message, got)
				}
				if answer != nil {
					a, err := ahp.Peek(answer)
					if err != nil || !ahp.SameID(a.ID, env.ID) || a.Error == nil || a.Channel != nil && !bytes.Equal(a.Channel, env.Channel) {
						t.Fatalf("the answer to %s is %s, %v; want an error with its ID and channel", message, answer, err)
					}
				}
			}
			if !bytes.Equal(message, before) {
				t.Fatalf("the gate has changed its message %s to %s; want it as it was", before, message)
			}
		}
		if data, err := encode(g.State()); err != nil || len(data) > 24<<10 {
			t.Fatalf("the state has %d bytes, %v; want at most 24576", len(data), err)
		}
	})
}
