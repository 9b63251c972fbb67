package test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/test/stack"
)

// TestPipelinedAndGone lets clients send all their messages in one write and close at
// once, without reading. The host must receive all messages, and then the end of the
// connection.
func TestPipelinedAndGone(t *testing.T) {
	t.Parallel()
	host := newScriptedHost(t)
	s := startStack(t, stack.Config{Upstream: host.server.URL()})
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, awaitsUpgrade := range map[string]bool{"with the handshake": false, "behind the handshake": true} {
		t.Run(name, func(t *testing.T) {
			for i := range 6 { // the first client's messages arrive while its link is still being opened
				clientID := fmt.Sprintf("gone-%v-%d", awaitsUpgrade, i)
				want := []string{
					`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientId":"` + clientID + `"}}`,
					`{"jsonrpc":"2.0","id":2,"method":"createSession","params":{}}`,
					note("ahp-session:/1", 3, 40<<10),
					note("ahp-session:/1", 4, 10),
				}
				sayAndLeave(t, s.URL(stack.Host), token, awaitsUpgrade, want)
				conn := host.conn(clientID, 0)
				select {
				case <-conn.done:
				case <-time.After(stepTime):
					t.Fatal("the host's connection is open after the client has left; want it closed")
				}
				if got := conn.messages(); !slices.Equal(got, want) {
					t.Fatalf("host got %d messages %.60q; want all %d", len(got), got, len(want))
				}
			}
		})
	}
}

// sayAndLeave opens a WebSocket, sends messages in one write, and closes the
// connection. It reads only the answer to the handshake.
func sayAndLeave(t *testing.T, address, token string, awaitsUpgrade bool, messages []string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	handshake := "GET " + u.Path + " HTTP/1.1\r\nHost: " + u.Host + "\r\nAuthorization: Bearer " + token +
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	var frames strings.Builder
	for _, m := range messages {
		frames.Write(maskedText(m))
	}
	if !awaitsUpgrade {
		handshake += frames.String()
	}
	if _, err := conn.Write([]byte(handshake)); err != nil {
		t.Fatal(err)
	}
	if !awaitsUpgrade {
		return
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the handshake: %v, %v; want HTTP 101", response, err)
	}
	if _, err := conn.Write([]byte(frames.String())); err != nil {
		t.Fatal(err)
	}
}

// maskedText returns a client's text frame, with a mask of zeros (RFC 6455, section
// 5.2).
func maskedText(message string) []byte {
	n := len(message)
	frame := []byte{0x81, 0x80 | 126, byte(n >> 8), byte(n)}
	if n < 126 {
		frame = []byte{0x81, 0x80 | byte(n)}
	}
	return append(append(frame, 0, 0, 0, 0), message...)
}
