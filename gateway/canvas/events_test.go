package canvas

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
)

// A pipeListener accepts the connections sent to its channel.
type pipeListener struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conn:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l pipeListener) Close() error   { close(l.closed); return nil }
func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "browser"} }

// eventsOverHTTP1 has a browser request an event stream over HTTP/1.1. Each time the
// relay borrows the link to the host, it gets borrow's error. eventsOverHTTP1 waits for
// the response, and returns it with the time that passed.
func eventsOverHTTP1(t *testing.T, ctx context.Context, borrow func() error) (*http.Response, time.Duration, error) {
	t.Helper()
	c := New(Config{Origin: Origin{Scheme: "https", Domain: "canvas.example.com"}, Borrow: func(context.Context, string, string) (Link, func(), error) {
		return Link{}, func() {}, borrow()
	}})
	l := pipeListener{make(chan net.Conn, 1), make(chan struct{})}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.serveEvents(w, r.WithContext(context.WithValue(ctx, sessionKey{}, newSession(auth.CanvasGrant{}, "name", ""))))
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	browser, relay := net.Pipe()
	l.conn <- relay
	defer func() {
		_ = browser.Close()
		_ = server.Close()
		<-served
	}()
	begun := time.Now()
	if _, err := io.WriteString(browser, "GET /events HTTP/1.1\r\nHost: name.canvas.example.com\r\nAccept: text/event-stream\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(browser), nil)
	return response, time.Since(begun), err
}

// A browser requests an event stream while the host is away. The relay holds the
// request for holdTime, and then closes the connection without an answer.
func TestEventStreamOfAHostThatIsAwayHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, took, err := eventsOverHTTP1(t, t.Context(), func() error { return ErrHostAway })
		if !errors.Is(err, io.ErrUnexpectedEOF) || took != holdTime {
			t.Errorf("the request ends with %v after %v; want the end of the connection after %v", err, took, holdTime)
		}
	})
}

// The relay holds a request for an event stream while the host is away, and tries the
// host every holdRetry. On the fourth attempt, a host-agent is there, but too old: the
// relay answers with 501.
func TestHeldEventStreamIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		response, took, err := eventsOverHTTP1(t, t.Context(), func() error {
			if attempts++; attempts < 4 {
				return ErrHostAway
			}
			return nil
		})
		if err != nil || response.StatusCode != http.StatusNotImplemented || took != 3*holdRetry {
			t.Errorf("the request gets %v, %v after %v; want HTTP %d after %v", response, err, took, http.StatusNotImplemented, 3*holdRetry)
		}
	})
}

// A token is revoked while the relay holds its request for an event stream. The relay
// answers with 410 before its next attempt.
func TestHeldEventStreamEndsWithItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancelCause(t.Context())
		response, took, err := eventsOverHTTP1(t, ctx, func() error {
			end(auth.ErrTokenRevoked)
			return ErrHostAway
		})
		if err != nil || response.StatusCode != http.StatusGone || took > holdRetry {
			t.Errorf("the request gets %v, %v after %v; want HTTP %d", response, err, took, http.StatusGone)
		}
	})
}

// Over HTTP/2, the relay resets the stream of a request for events while the host is
// away. The connection stays open and serves the next request.
func TestEventStreamIsResetInHTTP2(t *testing.T) {
	c := New(Config{Borrow: func(context.Context, string, string) (Link, func(), error) { return Link{}, nil, ErrHostAway }})
	c.hold = time.Millisecond
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if wantsEvents(r) {
			c.serveEvents(w, r.WithContext(context.WithValue(r.Context(), sessionKey{}, newSession(auth.CanvasGrant{}, "name", ""))))
		}
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/event-stream")
	response, err := server.Client().Do(request)
	if err == nil {
		_ = response.Body.Close()
		t.Errorf("the request gets HTTP %d; want no answer", response.StatusCode)
	} else if !strings.Contains(err.Error(), "INTERNAL_ERROR") {
		t.Errorf("the request ends with %v; want the stream reset", err)
	}
	request.Header.Del("Accept")
	if response, err = server.Client().Do(request); err != nil || response.ProtoMajor != 2 {
		t.Fatalf("the request after a reset event stream: %v, %v; want an HTTP/2 answer", response, err)
	}
	_ = response.Body.Close()
	if n := connections.Load(); n != 1 {
		t.Errorf("the client opened %d connections; want 1", n)
	}
}

// Only a GET that accepts text/event-stream, and no WebSocket, may remain without an
// answer.
func TestOnlyEventStreamsHaveNoAnswer(t *testing.T) {
	for _, test := range []struct {
		method, accept, upgrade string
		want                    bool
	}{
		{"GET", "text/event-stream", "", true},
		{"GET", "application/json, Text/Event-Stream", "", true}, // as sent by MCP clients
		{"GET", "text/html,*/*;q=0.8", "", false},
		{"GET", "", "", false},
		{"POST", "text/event-stream", "", false}, // a repeated POST could act twice
		{"GET", "text/event-stream", "websocket", false},
	} {
		r := httptest.NewRequest(test.method, "/", nil)
		r.Header.Set("Accept", test.accept)
		if test.upgrade != "" {
			r.Header.Set("Upgrade", test.upgrade)
		}
		if got := wantsEvents(r); got != test.want {
			t.Errorf("wantsEvents for %+v = %v; want %v", test, got, test.want)
		}
	}
}
