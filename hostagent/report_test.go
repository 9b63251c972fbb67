package hostagent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth/mcpgate"
	"ahprelay/routing"
)

// reported collects the reports that a relay gets about connections.
type reported struct {
	mu     sync.Mutex
	counts map[string]int64 // the sum for each kind and class
	state  []byte           // the last reported state
	n      int              // how many reports there were
}

func (r *reported) add(report routing.Report) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n++
	if r.counts == nil {
		r.counts = map[string]int64{}
	}
	for _, c := range report.Counts {
		r.counts[c.Kind+" "+c.Class] += c.N
	}
	if report.State != nil {
		r.state = report.State
	}
}

// now waits 1 s for pending reports, and returns the counts and the last state.
func (r *reported) now() (counts map[string]int64, state connState) {
	time.Sleep(time.Second)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = json.Unmarshal(r.state, &state)
	return r.counts, state
}

// inLoggedWorld is inWorld with the host-agent's log in a buffer.
func inLoggedWorld(t *testing.T, test func(w *world, log *bytes.Buffer)) {
	inWorld(t, func(w *world) {
		var log bytes.Buffer
		w.agent.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		test(w, &log)
	})
}

const (
	tools = `{"type":"mcpServer","id":"s","state":{"kind":"ready"},"channel":"mcp://h/1","mcpApp":{"capabilities":{"serverTools":{}}}}`
	call  = `{"jsonrpc":"2.0","id":%d,"channel":"mcp://h/1","method":%q,"params":{"secret":"xyzzy"}}`
)

// greet sends initialize with these capabilities. The host then shows the client a session with an
// MCP server. greet returns the client's connection to the host.
func (r *remote) greet(capabilities string) (host *fakeSocket) {
	r.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"c1","capabilities":` + capabilities + `}}`)
	host = r.w.hostSide()
	host.toUs <- `{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-session:/1","action":{"type":"session/customizationsChanged","customizations":[` + tools + `]},"serverSeq":1}}`
	synctest.Wait()
	return host
}

// TestSoftModeRefusesOnlyUnservedMethods uses features that host and client have not declared. The
// host-agent must report and log warnings, and refuse only methods that the server does not
// provide.
func TestSoftModeRefusesOnlyUnservedMethods(t *testing.T) {
	inLoggedWorld(t, func(w *world, log *bytes.Buffer) {
		c := w.open()
		host := c.greet(`{"mcpApps":{}}`)
		c.send(fmt.Sprintf(call, 2, "tools/call"))
		c.send(fmt.Sprintf(call, 3, "prompts/get"))
		ask := `{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{"channel":"mcp://h/1","secret":"xyzzy"}}`
		for range 12 {
			host.toUs <- ask
		}
		counts, state := w.reported.now()
		if got := host.messages(); len(got) != 2 || got[1] != fmt.Sprintf(call, 2, "tools/call") {
			t.Errorf("the host got %q; want initialize, and the call as it came", got)
		}
		c.note(func() {
			if !strings.Contains(c.got.String(), ask) || !strings.Contains(c.got.String(), `{"jsonrpc":"2.0","id":3,"error":{"code":-32601`) {
				t.Errorf("the client got %s; want the host's request, and error -32601 to request 3", c.got.String())
			}
		})
		warning, rejection := "warning sampling_without_client_capability", "rejection method_not_served"
		if counts[warning] != 12 || counts[rejection] != 1 || len(counts) != 2 {
			t.Errorf("the reports count %v; want 12 warnings and one rejection", counts)
		}
		if s := state.Seen["warning"]["sampling_without_client_capability"]; s != 12 || !state.MCP.Initialized || state.MCP.Mode != "soft" ||
			string(state.MCP.Capabilities) != `{"mcpApps":{}}` || len(state.MCP.Channels) != 1 {
			t.Errorf("the reported state is %+v; want 12 warnings, soft mode, the capabilities and one channel", state)
		}
		text := log.String()
		if n := strings.Count(text, "mcp.capability.warning"); n != 2 || !strings.Contains(text, "warning_class=sampling_without_client_capability") {
			t.Errorf("the log has %d warnings; want those of the first and the tenth connection:\n%s", n, text)
		}
		if !strings.Contains(text, "rejection_class=method_not_served method=prompts/get") || strings.Contains(text, "xyzzy") {
			t.Errorf("the log says\n%s\nwant the rejection of prompts/get without contents", text)
		}
	})
}

// TestStrictModeRefusesUndeclaredFeatures has a host use a feature that the client has not
// declared. The host-agent must refuse this if the relay or the owner sets Strict, and pass it
// otherwise.
func TestStrictModeRefusesUndeclaredFeatures(t *testing.T) {
	for _, by := range []string{"relay", "owner", "nobody"} {
		inLoggedWorld(t, func(w *world, log *bytes.Buffer) {
			w.agent.cfg.Strict = by == "owner"
			c := w.openAs(w.relay, routing.Open{ID: "c", Subject: "ada", Access: "write", Strict: by == "relay"})
			host := c.greet(`{"mcpApps":{}}`)
			host.toUs <- `{"jsonrpc":"2.0","id":"a","method":"sampling/createMessage","channel":"mcp://h/1"}`
			counts, state := w.reported.now()
			refusal := `{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"the client has not declared the capability sampling"},"channel":"mcp://h/1"}`
			got := host.messages()
			if refused := got[len(got)-1] == refusal; refused != (by != "nobody") {
				t.Errorf("strict by %s: the host got %q; want the call refused only if relay or host-agent is strict", by, got)
			}
			c.note(func() {
				if asked := strings.Contains(c.got.String(), "createMessage"); asked != (by == "nobody") {
					t.Errorf("strict by %s: the client got %s; want the host's request only if neither relay nor host-agent is strict", by, c.got.String())
				}
			})
			if n := counts["rejection sampling_without_client_capability"]; (n == 1) != (by != "nobody") || (state.MCP.Mode == "strict") != (by != "nobody") {
				t.Errorf("strict by %s: the reports are %v, %+v; want a rejection only if relay or host-agent is strict", by, counts, state)
			}
		})
	}
}

// TestLastCountsAreReported disconnects a client directly after a refused request. The relay must
// still get the refusal's count.
func TestLastCountsAreReported(t *testing.T) {
	inWorld(t, func(w *world) {
		c := w.open()
		c.greet(`{}`)
		w.reported.now()
		c.send(fmt.Sprintf(call, 2, "later"))
		c.conn.Close(ahp.CloseResync, "")
		if counts, _ := w.reported.now(); counts["rejection method_not_served"] != 1 {
			t.Errorf("the reports count %v; want one rejection", counts)
		}
	})
}

// TestQuietConnectionsReportOnce connects a client that sends 1,000 messages, but none for MCP. The
// host-agent must send one report.
func TestQuietConnectionsReportOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		c := w.open()
		c.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"channel":"ahp-root://","clientId":"c1"}}`)
		host := w.hostSide()
		for i := range 1000 {
			host.toUs <- fmt.Sprintf(`{"jsonrpc":"2.0","method":"action","params":{"channel":"ahp-chat:/1","action":{"type":"chat/delta"},"serverSeq":%d}}`, i)
			c.send(`{"jsonrpc":"2.0","method":"dispatchAction","params":{"channel":"ahp-chat:/1"}}`)
		}
		w.reported.now()
		if w.reported.n != 1 {
			t.Errorf("an idle connection sent %d reports; want one", w.reported.n)
		}
	})
}

// TestManyClassesAreBounded counts more classes than a report may hold. The report must have at
// most routing.MaxCounts.
func TestManyClassesAreBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		c := w.open()
		c.greet("{}")
		for i := range 100 {
			w.agent.clients.every()[0].report.count(mcpgate.Rejection, fmt.Sprint("class_", i), "")
		}
		counts, _ := w.reported.now()
		if len(counts) > routing.MaxCounts || len(counts) < 32 {
			t.Errorf("%d classes are reported; want 32 to routing.MaxCounts", len(counts))
		}
	})
}
