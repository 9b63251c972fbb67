package test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

// The most bytes that relay and host-agent hold for a canvas stream without a reader,
// kernel buffers included: see docs/limits.md.
const (
	mostHeld = 24 << 20
	standing = 500 * time.Millisecond // a stream without a new byte for this time counts as stopped
)

// raw opens a TCP connection to the relay, for bytes that no browser would send. It
// returns the page's host name and cookie for the request.
func (b *browser) raw(base string) (conn net.Conn, host, cookie string) {
	b.t.Helper()
	u := mustURL(b.t, base)
	conn, err := net.Dial("tcp", "127.0.0.1:"+u.Port())
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = conn.Close() })
	var pairs []string
	for _, c := range b.client.Jar.Cookies(u) {
		pairs = append(pairs, c.Name+"="+c.Value)
	}
	return conn, u.Host, strings.Join(pairs, "; ")
}

// A client sends requests that two parsers may read differently, each with a second
// request behind it. The application must not receive a request that the relay has not
// checked.
func TestCanvasLiveSmuggling(t *testing.T) {
	t.Parallel()
	_, a, _, _, b, base := liveApp(t, nil)
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for name, c := range map[string]struct{ line, header, body string }{
		"chunks and a length":       {"POST /echo", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"},
		"two lengths":               {"POST /echo", "Content-Length: 0\r\nContent-Length: 5\r\n", ""},
		"a length of no number":     {"POST /echo", "Content-Length: +0\r\n", ""},
		"chunks twice":              {"POST /echo", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"},
		"an encoding nobody knows":  {"POST /echo", "Transfer-Encoding: xchunked\r\n", ""},
		"a space before the colon":  {"POST /echo", "Content-Length : 5\r\n", ""},
		"a folded line":             {"POST /echo", "X-App: a\r\n Content-Length: 5\r\n", ""},
		"a chunk of no size":        {"POST /echo", "Transfer-Encoding: chunked\r\n", "0x0\r\n\r\n"},
		"lengths in the connection": {"POST /echo", "Connection: Content-Length\r\nContent-Length: 0\r\n", ""},
		"a socket of version 777":   {"GET /socket", upgrade + "Sec-WebSocket-Version: 777\r\n", ""},
		"a socket with a body":      {"GET /socket", upgrade + "Sec-WebSocket-Version: 13\r\nContent-Length: 2\r\n", "ab"},
		"another protocol":          {"GET /socket", "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n", ""},
		"two hosts":                 {"GET /start", "Host: example.com\r\n", ""},
		"a bare line feed":          {"GET /start", "X-App: a\nX-Other: b\r\n", ""},
		"a path with a line":        {"GET /start\tHTTP/1.1\r\nGET /smuggled", "", ""},
	} {
		conn, host, cookie := b.raw(base)
		request := fmt.Sprintf("%s HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nOrigin: %s\r\n%s\r\n%s", c.line, host, cookie, base, c.header, c.body)
		behind := fmt.Sprintf("GET /smuggled HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		if _, err := io.WriteString(conn, request+behind); err != nil {
			t.Errorf("sending the request %s: %v; want no error", name, err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(stepTime)); err != nil {
			t.Fatal(err)
		}
		answers := bufio.NewReader(conn)
		for i := range 2 { // the second response may be missing
			response, err := http.ReadResponse(answers, nil)
			if err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s: the connection is open after %d answers; want it closed", name, i)
				}
				break
			}
			_, _ = io.Copy(io.Discard, response.Body)
			if response.StatusCode == http.StatusSwitchingProtocols {
				break
			}
		}
		_ = conn.Close()
		if n := a.smuggled.Swap(0); n != 0 {
			t.Errorf("%s: the application received %d smuggled requests; want 0", name, n)
		}
	}
	if got := b.open(base + "/start"); got.status != http.StatusOK {
		t.Errorf("a request after the smuggling: HTTP %d; want 200", got.status)
	}
}

// An application sends without end to a browser that reads nothing, and a browser sends
// without end to an application that reads nothing. Both streams stop after a bounded
// number of bytes. The rest of the page still works.
func TestCanvasLiveBounds(t *testing.T) {
	t.Parallel()
	_, a, _, _, b, base := liveApp(t, nil)
	conn, host, cookie := b.raw(base)
	if _, err := fmt.Fprintf(conn, "GET /endless HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\n\r\n", host, cookie); err != nil {
		t.Fatal(err)
	}
	for before := int64(-1); ; time.Sleep(standing) {
		said := a.said.Load()
		if said > mostHeld {
			t.Fatalf("%d bytes have left the application without a reader; want at most mostHeld", said)
		}
		if said == before && said > 0 {
			break
		}
		before = said
	}
	conn, host, cookie = b.raw(base)
	if _, err := fmt.Fprintf(conn, "POST /sink HTTP/1.1\r\nHost: %s\r\nCookie: %s\r\nOrigin: %s\r\nTransfer-Encoding: chunked\r\n\r\n", host, cookie, base); err != nil {
		t.Fatal(err)
	}
	chunk := fmt.Appendf(nil, "10000\r\n%s\r\n", large[:64<<10])
	for sent := 0; ; {
		if err := conn.SetWriteDeadline(time.Now().Add(standing)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Write(chunk)
		if sent += n; sent > mostHeld {
			t.Fatalf("%d bytes were read from a browser while the application reads none; want at most mostHeld", sent)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			t.Fatalf("sending, after %d bytes: %v; want no error", sent, err)
		}
	}
	for range 3 {
		if got := b.open(base + "/start"); got.status != http.StatusOK {
			t.Errorf("a request beside both: HTTP %d; want 200", got.status)
		}
	}
}

// Two subjects open the same canvas, at different origins. A browser with the first
// subject's cookies cannot open the second subject's page, nor the reverse.
func TestCanvasLiveSubjects(t *testing.T) {
	t.Parallel()
	w, _, _, channel, ada, adas := liveApp(t, nil)
	c := w.clientWith("b", func(c *auth.Client) { c.Subject = "bob" })
	bob := w.browser()
	page := bob.open(w.ticket(c, map[string]any{"channel": channel, "uri": w.show(c, channel)}))
	bobs := strings.TrimSuffix(page.url, "/start?x=1")
	if page.status != http.StatusOK || bobs == adas {
		t.Fatalf("bob's page: HTTP %d at %s, and ada's is at %s; want 200, and a different address", page.status, page.url, adas)
	}
	for _, one := range []struct {
		who    string
		whose  *browser
		at, of string
	}{{"bob", bob, adas, bobs}, {"ada", ada, bobs, adas}} {
		_, _, cookie := one.whose.raw(one.of)
		if got := w.browser().send("GET", one.at+"/start", map[string]string{"Cookie": cookie}, nil); got.status != http.StatusForbidden {
			t.Errorf("%s's cookie at the other person's page: HTTP %d; want 403", one.who, got.status)
		}
	}
	if got := w.browser().open(adas + "/start"); got.status != http.StatusForbidden {
		t.Errorf("a browser with only the address: HTTP %d; want 403", got.status)
	}
}
