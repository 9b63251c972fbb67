package test

import (
	"bufio"
	"net/http"
	"testing"
)

// eventSource requests the event stream in its own goroutine, as a page's EventSource
// does: it repeats a request that ends without a response, as after the relay's holdTime.
// The channel receives the first response.
func (w *canvasWorld) eventSource(b *browser, base string) <-chan *http.Response {
	w.t.Helper()
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, base+"/events", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Accept", "text/event-stream")
	answered := make(chan *http.Response, 1)
	go func() {
		response, err := b.client.Do(request)
		for err != nil && request.Context().Err() == nil {
			response, err = b.client.Do(request)
		}
		answered <- response
	}()
	return answered
}

// TestEventStreamIsHeldForANewHostAgent ends the host-agent while a page has an event
// stream. The page requests the stream again, first while no host-agent runs, then
// while the new host-agent does not know the client yet. The relay holds both requests,
// and serves the stream once the client is back. It refuses requests for pages in the
// meantime.
func TestEventStreamIsHeldForANewHostAgent(t *testing.T) {
	t.Parallel()
	w, _, _, channel, b, base := liveApp(t, nil)
	before := w.events(b, base)
	before.next()
	if err := w.stack.StopAgent(); err != nil {
		t.Fatal(err)
	}
	before.ends()
	if err := w.stack.AwaitState(t.Context(), "offline"); err != nil {
		t.Fatal(err)
	}
	sources := []<-chan *http.Response{w.eventSource(b, base)}
	if got := b.open(base + "/start"); got.status != http.StatusServiceUnavailable {
		t.Errorf("a page while the host is unreachable: HTTP %d, %q; want 503", got.status, got.body)
	}
	if err := w.stack.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := w.stack.AwaitState(t.Context(), "online"); err != nil {
		t.Fatal(err)
	}
	sources = append(sources, w.eventSource(b, base))
	if got := b.open(base + "/start"); got.status != http.StatusForbidden || got.header.Get("Ahp-Canvas-For-Now") != "" {
		t.Errorf("a page before the client's return: HTTP %d, %q, header %v; want 403, without Ahp-Canvas-For-Now", got.status, got.body, got.header)
	}
	c := w.clientWith("c", nil)
	if at := w.show(c, channel); at == "" {
		t.Error("the canvas has no address after the client's return; want one")
	}
	for i, source := range sources {
		response := <-source
		lines := bufio.NewScanner(response.Body)
		if response.StatusCode != http.StatusOK || !lines.Scan() || lines.Text() != "data: 0" {
			t.Errorf("request %d for the event stream: HTTP %d, %q; want 200, and data: 0", i, response.StatusCode, lines.Text())
		}
		_ = response.Body.Close()
	}
}
