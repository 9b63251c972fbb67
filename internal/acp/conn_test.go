package acp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"ahprelay/internal/acp"
	"ahprelay/test/locked"
)

// A recorder is a Handler that records the received messages. It answers requests with answer,
// unless answer is nil.
type recorder struct {
	mu       sync.Mutex
	got      []string
	requests []*acp.Request
	answer   func(r *acp.Request)
}

func (h *recorder) Notify(method string, params json.RawMessage) {
	h.add(method + " " + string(params))
}
func (h *recorder) Flush() {}
func (h *recorder) Request(r *acp.Request) {
	h.add("? " + r.Method)
	h.mu.Lock()
	h.requests = append(h.requests, r)
	h.mu.Unlock()
	if h.answer != nil {
		h.answer(r)
	}
}

func (h *recorder) add(text string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, text)
}

func (h *recorder) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.got...)
}

// read runs a connection until it has read all of input. It returns the connection, and everything
// that the connection has written.
func read(t *testing.T, input string, h *recorder, limits acp.Limits) (*acp.Conn, string) {
	t.Helper()
	var out locked.Buffer
	conn := acp.NewConn(strings.NewReader(input), &out, h, limits)
	if err := conn.Run(); !errors.Is(err, io.EOF) {
		t.Fatalf("Run() = %v; want EOF", err)
	}
	return conn, out.String()
}

func TestLinesThatAreNoMessagesAreCounted(t *testing.T) {
	h := &recorder{}
	conn, _ := read(t, "warning: not JSON\n[]\n\n{\"jsonrpc\":\"2.0\"}\n{\"id\":\n{\"method\":\"a\"}\r\n{\"id\":9,\"result\":1}\nrest", h, acp.Limits{})
	if got := fmt.Sprint(h.all()); got != "[a ]" {
		t.Errorf("the received messages are %s; want one", got)
	}
	if got := conn.Skipped(); got != 4 {
		t.Errorf("Skipped() = %d; want 4", got)
	}
}

// TestLimitOfALine sends a line at the limit and a line that is a byte longer, with a notification
// and with a request. The longer line must be skipped, and the message after it handled.
func TestLimitOfALine(t *testing.T) {
	const limit = 64 << 10
	line := func(format string, size int) string {
		return fmt.Sprintf(format, strings.Repeat("x", size-len(format)+len("%s")))
	}
	const note, ask = `{"method":"n","params":"%s"}`, `{"id":"k","method":"q","params":"%s"}`
	for _, c := range []struct {
		format string
		size   int
		want   string
	}{
		{note, limit, "[n after]"}, {note, limit + 1, "[after]"}, {ask, limit, "[? q after]"}, {ask, limit + 1, "[after]"},
	} {
		h := &recorder{}
		_, _ = read(t, line(c.format, c.size)+"\n{\"method\":\"after\"}\n", h, acp.Limits{Line: limit})
		var got []string
		for _, m := range h.all() {
			name, _, _ := strings.Cut(m, " \"")
			got = append(got, strings.TrimSpace(name))
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%.20s of %d bytes: messages are %v; want %s", c.format, c.size, got, c.want)
		}
	}
}

// pair returns two connections with each other in memory. Both run until the test ends.
func pair(t *testing.T, a, b acp.Handler, limits acp.Limits) (*acp.Conn, *acp.Conn) {
	t.Helper()
	ra, wb := io.Pipe()
	rb, wa := io.Pipe()
	left, right := acp.NewConn(ra, wa, a, limits), acp.NewConn(rb, wb, b, limits)
	var wg sync.WaitGroup
	wg.Go(func() { _ = left.Run(); wa.Close(); ra.Close() })
	wg.Go(func() { _ = right.Run(); wb.Close(); rb.Close() })
	t.Cleanup(func() {
		wa.Close()
		wb.Close()
		wg.Wait()
	})
	return left, right
}

func TestCallsInBothDirections(t *testing.T) {
	echo := func(r *acp.Request) { r.Reply(map[string]any{"of": r.Method}, nil) }
	a, b := pair(t, &recorder{answer: echo}, &recorder{answer: echo}, acp.Limits{})
	var wg sync.WaitGroup
	for _, conn := range []*acp.Conn{a, b} {
		for i := range 20 {
			wg.Go(func() {
				var result struct{ Of string }
				method := fmt.Sprint("m", i)
				if err := conn.Call(t.Context(), method, struct{}{}, &result); err != nil || result.Of != method {
					t.Errorf("Call(%s) = %+v, %v; want the method's own name", method, result, err)
				}
			})
		}
	}
	wg.Wait()
}

// TestErrorsAnswerCalls makes calls that the peer answers with an error, too late, twice, or above
// the limit. Each call must return the right error or the first answer, and the connection must
// stay usable.
func TestErrorsAnswerCalls(t *testing.T) {
	peer := &recorder{}
	a, _ := pair(t, &recorder{}, peer, acp.Limits{Line: 1000})
	peer.answer = func(r *acp.Request) {
		switch r.Method {
		case "refuse":
			r.Reply(nil, &acp.Error{Code: acp.CodeAuthRequired, Message: "sign in"})
		case "long":
			r.Reply(strings.Repeat("x", 2000), nil)
		case "twice":
			r.Reply(1, nil)
			r.Reply(2, nil)
		}
	}
	var refused *acp.Error
	if err := a.Call(t.Context(), "refuse", nil, nil); !errors.As(err, &refused) || refused.Code != acp.CodeAuthRequired {
		t.Errorf("Call(refuse) = %v; want the peer's error", err)
	}
	if err := a.Call(t.Context(), "long", nil, nil); !errors.Is(err, acp.ErrTooLong) {
		t.Errorf("Call(long) = %v; want %v", err, acp.ErrTooLong)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Call(ctx, "never", nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Call(never) = %v; want Canceled", err)
	}
	peer.mu.Lock()
	late := peer.requests
	peer.mu.Unlock()
	var n int
	if err := a.Call(t.Context(), "twice", nil, &n); err != nil || n != 1 {
		t.Errorf("Call(twice) = %d, %v; want the first answer", n, err)
	}
	for _, r := range late {
		r.Reply("late", nil)
	}
	if err := a.Call(t.Context(), "twice", nil, &n); err != nil {
		t.Errorf("a call after a late answer: %v; want no error", err)
	}
}

func TestTooManyRequestsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := &recorder{}
		a, _ := pair(t, &recorder{}, peer, acp.Limits{Requests: 3})
		var wg sync.WaitGroup
		var refused locked.Buffer
		for range 5 {
			wg.Go(func() {
				if err := a.Call(t.Context(), "wait", nil, nil); err != nil {
					fmt.Fprintln(&refused, err)
				}
			})
		}
		synctest.Wait()
		if got := strings.Count(refused.String(), "too many requests"); got != 2 {
			t.Errorf("%d requests are refused; want 2", got)
		}
		for _, r := range peer.requests {
			r.Reply(nil, nil)
		}
		wg.Wait()
	})
}

// TestAStuckPeerEndsTheConnection sends notifications to a peer that reads nothing. When the queue
// is full, Notify must return ErrStuck, and the connection end.
func TestAStuckPeerEndsTheConnection(t *testing.T) {
	in, held := io.Pipe()
	_, out := io.Pipe() // never read
	conn := acp.NewConn(in, out, &recorder{}, acp.Limits{Queue: 1000})
	var wg sync.WaitGroup
	wg.Go(func() { _ = conn.Run() })
	var err error
	for range 1000 {
		if err = conn.Notify("n", strings.Repeat("x", 100)); err != nil {
			break
		}
	}
	if !errors.Is(err, acp.ErrStuck) {
		t.Errorf("Notify = %v; want %v", err, acp.ErrStuck)
	}
	if err := conn.Call(t.Context(), "q", nil, nil); !errors.Is(err, acp.ErrClosed) {
		t.Errorf("Call = %v; want %v", err, acp.ErrClosed)
	}
	<-conn.Done()
	out.Close()
	held.Close()
	wg.Wait()
}

func TestDecodeLeavesOutWrongMembers(t *testing.T) {
	var call acp.ToolCallUpdate
	text := `{"toolCallId":"c","kind":7,"locations":[{"path":3},{"path":"/b"}],"status":"completed","content":"none","later":1}`
	if err := acp.Decode(json.RawMessage(text), &call); err != nil {
		t.Fatal(err)
	}
	if call.ToolCallID != "c" || call.Kind != "" || call.Status != acp.ToolCallStatusCompleted || len(call.Locations) != 2 || call.Locations[1].Path != "/b" {
		t.Errorf("Decode = %+v; want the other members, and no kind", call)
	}
}

func TestUnionsKeepRequiredTexts(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		{acp.ContentBlock{Type: acp.ContentBlockText}, `{"text":"","type":"text"}`},
		{acp.ToolCallContent{Type: acp.ToolCallContentDiff, Path: "/a"}, `{"newText":"","path":"/a","type":"diff"}`},
		{acp.RequestPermissionOutcome{Outcome: acp.RequestPermissionOutcomeCancelled}, `{"outcome":"cancelled"}`},
	} {
		got, err := json.Marshal(c.v)
		if err != nil || string(got) != c.want {
			t.Errorf("Marshal(%T) = %s, %v; want %s", c.v, got, err, c.want)
		}
	}
	update, err := acp.Update(acp.UpdateAgentMessageChunk, acp.ContentChunk{Content: acp.ContentBlock{Type: acp.ContentBlockText, Text: "x"}})
	if err != nil || acp.UpdateKind(update) != acp.UpdateAgentMessageChunk || !json.Valid(update) {
		t.Errorf("Update = %s, %v; want valid JSON of its kind", update, err)
	}
}

// FuzzConn gives a connection arbitrary bytes from its peer. All that the connection writes must be
// valid JSON.
func FuzzConn(f *testing.F) {
	for _, seed := range []string{"{\"id\":1,\"result\":{}}\n", "{\"method\":\"m\",\"id\":null}\n", "{\"id\":\"1\",\"error\":{\"code\":1}}\nx\n", strings.Repeat("{", 2000) + "\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		h := &recorder{answer: func(r *acp.Request) { r.Reply(nil, nil) }}
		_, out := read(t, string(input), h, acp.Limits{Line: 1000})
		for line := range strings.Lines(out) {
			if !json.Valid([]byte(line)) {
				t.Errorf("the connection wrote %q; want JSON", line)
			}
		}
	})
}
