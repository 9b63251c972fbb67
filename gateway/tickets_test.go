package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/routing"
)

func TestParseCanvasDomain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"canvas.example.com":         "https://x.canvas.example.com/",
		"https://Canvas.Example.com": "https://x.canvas.example.com/",
		"http://localhost:8484/":     "http://x.localhost:8484/",
	} {
		if got, err := parseCanvasDomain(text); err != nil || got.url("x") != want {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ftp://x", "http://", "127.0.0.1", "http://[::1]:80", "http://a/b", "http://u@a", "https://a?b", "https://a#b", "a b"} {
		if got, err := parseCanvasDomain(text); err == nil {
			t.Errorf("%q: %+v; want an error", text, got)
		}
	}
}

// withTickets runs a test with a client whose host answers reads.
func withTickets(t *testing.T, respond func(request string) string, test func(w *world, c *clientEnd, h *hostEnd)) {
	t.Helper()
	inWorld(t, Config{CanvasDomain: "http://canvas.test:8484"}, func(w *world) {
		w.startAgent(routing.AgentConfig{})
		c := w.dial(w.token(nil))
		c.send(`{"id":0,"method":"initialize"}`)
		h := w.hostConn(1)
		h.mu.Lock()
		h.respond = respond
		h.mu.Unlock()
		synctest.Wait()
		test(w, c, h)
	})
}

// ticket asks for a ticket, and returns the URL.
func (c *clientEnd) ticket(channel, uri string) string {
	c.w.Helper()
	c.send(fmt.Sprintf(`{"id":"t","method":"relay/canvasTicket","params":{"channel":%q,"uri":%q}}`, channel, uri))
	synctest.Wait()
	messages := c.messages()
	var answer struct{ Result struct{ URL string } }
	if len(messages) == 0 || json.Unmarshal([]byte(messages[len(messages)-1]), &answer) != nil {
		c.w.Fatalf("no answer: %q", messages)
	}
	return answer.Result.URL
}

func (w *world) get(url string) (*http.Response, string) {
	url, _, _ = strings.Cut(url, "#") // browsers keep that to themselves
	recorder := httptest.NewRecorder()
	w.server.Handler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, url, nil))
	response := recorder.Result()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.Fatal(err)
	}
	return response, string(body)
}

// respondContents answers reads with their address, as content.
func respondContents(request string) string {
	var r struct {
		ID     string
		Params struct{ Channel, URI string }
	}
	if err := json.Unmarshal([]byte(request), &r); err != nil {
		return ""
	}
	return fmt.Sprintf(`{"id":%q,"result":{"contents":[{"uri":%q,"mimeType":"text/html","text":%q}]}}`, r.ID, r.Params.URI, r.Params.Channel+" "+r.Params.URI)
}

func TestTickets(t *testing.T) {
	withTickets(t, respondContents, func(w *world, c *clientEnd, h *hostEnd) {
		address := c.ticket("ahp-canvas:/1", "ahp-canvas-content:/i 1/a%20b/index.html?x=1#top")
		if !strings.HasPrefix(address, "http://") || !strings.HasSuffix(address, ".canvas.test:8484/a%20b/index.html?x=1#top") {
			t.Fatalf("ticket %q", address)
		}
		if again := c.ticket("ahp-canvas:/1", "ahp-canvas-content:/i%201/"); !strings.HasPrefix(address, again) {
			t.Errorf("another ticket for the same canvas: %s, %s", address, again)
		}
		other := c.ticket("ahp-canvas:/2", "ahp-canvas-content:/i2/")
		if strings.HasPrefix(address, other) {
			t.Error("the same ticket for two canvases")
		}
		response, body := w.get(address)
		if response.StatusCode != http.StatusOK || body != "ahp-canvas:/1 ahp-canvas-content:/i%201/a%20b/index.html?x=1" {
			t.Errorf("%s: %d %q", address, response.StatusCode, body)
		}
		for name, want := range map[string]string{
			"Content-Type": "text/html", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
			"Content-Security-Policy": "sandbox allow-scripts",
		} {
			if got := response.Header.Get(name); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q; want %q", name, got, want)
			}
		}
		if got := h.messages(); len(got) != 1 {
			t.Errorf("the host got %q of the client", got)
		}
		for _, m := range c.messages() {
			if strings.Contains(m, "contents") {
				t.Errorf("the client got %s", m)
			}
		}
		if response, _ := w.get(strings.Replace(address, "a%20b/index.html", "..%2f..%2fx", 1)); response.StatusCode != http.StatusBadRequest {
			t.Errorf("traversal: %d", response.StatusCode)
		}
		if response, body := w.get("http://" + strings.Repeat("x", 26) + ".canvas.test:8484/healthz"); response.StatusCode != http.StatusGone {
			t.Errorf("unknown ticket: %d %q", response.StatusCode, body)
		}
		if response, _ := w.get("http://canvas.test:8484/healthz"); response.StatusCode != http.StatusOK {
			t.Errorf("the domain itself: %d", response.StatusCode)
		}
		// The ticket ends with the connection.
		_ = c.ws.CloseNow()
		synctest.Wait()
		time.Sleep(time.Second)
		if response, _ := w.get(address); response.StatusCode != http.StatusGone {
			t.Errorf("after the end of the connection: %d", response.StatusCode)
		}
		if len(w.server.tickets.byID) != 0 {
			t.Error("tickets left")
		}
	})
}

func TestTicketAnswers(t *testing.T) {
	long := strings.Repeat("A", 1<<20)
	for name, test := range map[string]struct {
		answer string // of the host, behind the id
		status int
		kind   string
		body   string
	}{
		"blob":           {`"result":{"contents":[{"mimeType":"image/png","blob":"iVBORw=="}]}`, 200, "image/png", "\x89PNG"},
		"no type":        {`"result":{"contents":[{"text":"x"}]}`, 200, "application/octet-stream", "x"},
		"hostile type":   {`"result":{"contents":[{"mimeType":"text/html\r\nSet-Cookie: a=b","text":"x"}]}`, 200, "application/octet-stream", "x"},
		"large":          {`"result":{"contents":[{"mimeType":"text/plain","text":"` + long + `"}]}`, 200, "text/plain", long},
		"bad blob":       {`"result":{"contents":[{"blob":"*"}]}`, 502, "text/plain; charset=utf-8", "the host's answer holds no content\n"},
		"nothing":        {`"result":{"contents":[]}`, 502, "text/plain; charset=utf-8", "the host's answer holds no content\n"},
		"not subscribed": {`"error":{"code":-32009,"message":"no"}`, 403, "text/plain; charset=utf-8", "no\n"},
		"closed":         {`"error":{"code":-32008,"message":"no"}`, 404, "text/plain; charset=utf-8", "no\n"},
		"not served":     {`"error":{"code":-32601,"message":"no"}`, 501, "text/plain; charset=utf-8", "no\n"},
		"failed":         {`"error":{"code":-32603,"message":"no"}`, 502, "text/plain; charset=utf-8", "no\n"},
	} {
		t.Run(name, func(t *testing.T) {
			respond := func(request string) string {
				id := strings.SplitN(strings.SplitN(request, `"id":"`, 2)[1], `"`, 2)[0]
				return fmt.Sprintf(`{"id":%q,%s}`, id, test.answer)
			}
			withTickets(t, respond, func(w *world, c *clientEnd, _ *hostEnd) {
				response, body := w.get(c.ticket("ahp-canvas:/1", "ahp-canvas-content:/i1/x"))
				if response.StatusCode != test.status || response.Header.Get("Content-Type") != test.kind || body != test.body {
					t.Errorf("%d %s %.80q; want %d %s %.80q", response.StatusCode, response.Header.Get("Content-Type"), body, test.status, test.kind, test.body)
				}
				if response.Header.Get("Set-Cookie") != "" {
					t.Error("a cookie was set")
				}
			})
		})
	}
}

// A host that does not answer, and a client that goes meanwhile.
func TestTicketsWait(t *testing.T) {
	withTickets(t, nil, func(w *world, c *clientEnd, _ *hostEnd) {
		address := c.ticket("ahp-canvas:/1", "ahp-canvas-content:/i1/x")
		if response, _ := w.get(address); response.StatusCode != http.StatusGatewayTimeout {
			t.Errorf("%d; want %d", response.StatusCode, http.StatusGatewayTimeout)
		}
		w.running.Go(func() {
			time.Sleep(time.Second)
			_ = c.ws.CloseNow()
		})
		if response, _ := w.get(address); response.StatusCode != http.StatusGone {
			t.Errorf("%d; want %d", response.StatusCode, http.StatusGone)
		}
	})
}

// TestCanvasesOfOneHoldUpNobody has the page of one client read 200 pieces that
// its host does not answer: another client's are read at once, and when the host
// answers, all 200 are.
func TestCanvasesOfOneHoldUpNobody(t *testing.T) {
	var mu sync.Mutex
	var held []string
	stuck := true
	respond := func(request string) string {
		mu.Lock()
		defer mu.Unlock()
		if stuck && strings.Contains(request, "slow") {
			held = append(held, request)
			return ""
		}
		return respondContents(request)
	}
	withTickets(t, respond, func(w *world, c *clientEnd, h *hostEnd) {
		slow := c.ticket("ahp-canvas:/1", "ahp-canvas-content:/i1/slow")
		other := w.dial(w.token(func(c *auth.Client) { c.Subject = "bob" }))
		other.send(`{"id":0,"method":"initialize"}`)
		end := w.hostConn(2)
		end.mu.Lock()
		end.respond = respond
		end.mu.Unlock()
		synctest.Wait()
		quick := other.ticket("ahp-canvas:/1", "ahp-canvas-content:/i1/quick")
		var read atomic.Int64
		for range 200 {
			w.running.Go(func() {
				if response, body := w.get(slow); response.StatusCode == http.StatusOK {
					read.Add(1)
				} else {
					w.Errorf("HTTP %d %s", response.StatusCode, body)
				}
			})
		}
		synctest.Wait()
		if n := len(held); n != clientReads {
			w.Errorf("the host has %d reads; want %d", n, clientReads)
		}
		begin := time.Now()
		if response, body := w.get(quick); response.StatusCode != http.StatusOK || time.Since(begin) > 0 {
			w.Errorf("another client: HTTP %d %s after %v", response.StatusCode, body, time.Since(begin))
		}
		mu.Lock()
		stuck = false
		mu.Unlock()
		for i, request := range held { // asks count from 1
			if err := h.conn.Answer(uint64(i+1), []byte(respondContents(request)), 0, 0); err != nil {
				w.Error(err)
			}
		}
		synctest.Wait()
		if read.Load() != 200 {
			w.Errorf("%d pieces were read; want 200", read.Load())
		}
		if n := w.server.budget.used.Load(); n != 0 {
			w.Errorf("%d bytes are counted in the end", n)
		}
	})
}

func TestBadTicketRequests(t *testing.T) {
	withTickets(t, respondContents, func(w *world, c *clientEnd, _ *hostEnd) {
		for _, params := range []string{
			`{"channel":"ahp-canvas:/1"}`, `{"channel":"ahp-session:/1","uri":"ahp-canvas-content:/i/"}`, `{"uri":"ahp-canvas-content:/i/"}`,
			`{"channel":"ahp-canvas:/1","uri":"https://example.com/"}`, `{"channel":"ahp-canvas:/1","uri":"ahp-canvas-content:/i/../x"}`,
		} {
			c.send(`{"id":1,"method":"relay/canvasTicket","params":` + params + `}`)
			synctest.Wait()
			messages := c.messages()
			if last := messages[len(messages)-1]; !strings.Contains(last, "-32602") {
				t.Errorf("%s: %s", params, last)
			}
		}
		for i := range maxTickets + 1 {
			if got := c.ticket("ahp-canvas:/1", fmt.Sprintf("ahp-canvas-content:/i%d/", i)); (got == "") != (i == maxTickets) {
				t.Errorf("ticket %d: %q", i, got)
			}
		}
	})
}

// A token with read access has tickets too; without a domain the method is the
// host's.
func TestWhoHasTickets(t *testing.T) {
	inWorld(t, Config{CanvasDomain: "canvas.test"}, func(w *world) {
		w.startAgent(routing.AgentConfig{})
		c := w.dial(w.token(func(c *auth.Client) { c.Access = auth.AccessRead }))
		c.send(`{"id":0,"method":"initialize"}`)
		w.hostConn(1)
		if got := c.ticket("ahp-canvas:/1", "ahp-canvas-content:/i/"); !strings.HasPrefix(got, "https://") {
			t.Errorf("ticket %q", got)
		}
	})
	inWorld(t, Config{}, func(w *world) {
		w.startAgent(routing.AgentConfig{})
		c := w.dial(w.token(nil))
		const request = `{"id":1,"method":"relay/canvasTicket","params":{"channel":"ahp-canvas:/1","uri":"ahp-canvas-content:/i/"}}`
		c.send(request)
		h := w.hostConn(1)
		synctest.Wait()
		if got := h.messages(); len(got) != 1 || got[0] != request {
			t.Errorf("the host got %q", got)
		}
		if response, _ := w.get("http://x.canvas.test/"); response.StatusCode == http.StatusGone {
			t.Error("a ticket was looked up")
		}
	})
}
